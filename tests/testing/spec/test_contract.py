"""Contracts: what can be declared, and how nonsense is refused."""

import re
from dataclasses import fields

import pytest

from linkern.testing import Contract, UsageError
from linkern.testing.spec.declarations import DECLARATIONS

# Declarations that need another one.
NEEDS = {
    "eps_mode": {"eps": "1e-6"},
    "gate_parameters": {"decay_form": "softplus"},
    "ranks_order": {"ranks_even": "true"},
}


def test_every_field_can_be_declared():
    assert set(DECLARATIONS) == {field.name for field in fields(Contract)}


@pytest.mark.parametrize("key", DECLARATIONS)
def test_every_declaration_has_an_example_that_differs_from_the_default(key):
    example = {key: DECLARATIONS[key].example}
    contract = Contract.from_mapping(example | NEEDS.get(key, {}))
    assert key in contract.declared()
    assert DECLARATIONS[key].when
    assert DECLARATIONS[key].values.text


def test_text_and_toml_values_mean_the_same(tmp_path):
    path = tmp_path / "contract.toml"
    path.write_text(
        'eps = 1e-6\nnormalize = true\nkey_dims = [16, 32]\nlayout = "bthd"\n'
    )
    from_file = Contract.from_mapping(Contract.from_file(path))
    text = {"eps": "1e-6", "normalize": "true", "key_dims": "16,32", "layout": "bthd"}
    assert from_file == Contract.from_mapping(text)
    assert from_file.declared() == {"eps": 1e-6, "key_dims": (16, 32), "layout": "bthd"}


def test_nothing_declared_is_the_strictest():
    assert Contract().declared() == {}


def test_the_default_accumulator_follows_the_dtype():
    assert Contract().precisions("bfloat16").accumulator == "float32"
    assert Contract().precisions("float64").accumulator == "float64"


def test_scale_by_key_dim():
    contract = Contract.from_mapping({"scale": "K^-0.5", "normalize": "false"})
    assert contract.quotient(16).scale == 0.25


@pytest.mark.parametrize(
    ("declared", "sentence"),
    [
        ({"epz": "1"}, 'unknown declaration "epz"; did you mean "eps"?'),
        ({"eps": "small"}, '`eps` must be a number, got "small".'),
        ({"eps": "-1"}, '`eps` must be zero or positive, got "-1".'),
        ({"eps": "nan"}, '`eps` must be finite, got "nan".'),
        ({"eps": "1", "normalize": "false"}, "`eps` is part of the quotient"),
        ({"eps_mode": "clamp"}, "`eps_mode=clamp` needs an `eps`"),
        ({"eps_mode": "x", "eps": "1"}, "`eps_mode` must be one of denominator"),
        ({"normalize": "yes"}, '`normalize` must be true or false, got "yes".'),
        ({"ranks_order": "zigzag"}, "`ranks_order=zigzag` needs `ranks_even=true`"),
        ({"layout": "tbhd"}, "`layout` must be one of bhtd, bthd, htd, td"),
        ({"scale": "0"}, "`scale` must be a number other than zero, or K^-0.5"),
        ({"chunk_size": "0"}, "`chunk_size` must be an integer of at least 1"),
        ({"key_dims": "4,x"}, '`key_dims` must be an integer of at least 1, got "x".'),
        ({"mutates": "q"}, "`mutates` must be one of query, key, value"),
        ({"state_dtype": "fp8"}, "`state_dtype` must be one of float64, float32"),
        ({"feature_map": "gelu"}, "`feature_map` must be one of elu_plus_one"),
        ({"min_length": "9", "max_length": "3"}, "must not be below `min_length`"),
        ({"interfaces": "step"}, 'did you mean "interface"?'),
        ({"interface": "steps"}, "`interface` must be one of sequence, step"),
        ({"gradients": "yes"}, "`gradients` must be one of auto, required, none"),
        ({"vjp": ""}, "`vjp` must be the name of a function"),
        ({"strides": "some"}, "`strides` must be one of any, contiguous"),
        ({"nan_policy": "zero"}, "`nan_policy` must be one of propagate, strict, any"),
        ({"rounding": "up"}, "`rounding` must be one of nearest, truncation"),
        (
            {"feature_error": "none"},
            "`feature_error` must be one of absolute, relative",
        ),
        ({"output_dtype": "int8"}, "`output_dtype` must be one of float64, float32"),
        ({"validates": "1"}, '`validates` must be true or false, got "1".'),
        ({"thread_safe": "no"}, '`thread_safe` must be true or false, got "no".'),
        ({"takes_state": "S"}, '`takes_state` must be true or false, got "S".'),
        ({"mutates": "query,stat"}, "`mutates` must be one of query, key, value, init"),
    ],
)
def test_nonsense_is_refused(declared, sentence):
    with pytest.raises(UsageError, match=re.escape(sentence)):
        Contract.from_mapping(declared)


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "cannot be read"), ("eps = ", "is no TOML"), ("\x00", "is no TOML")],
)
def test_unreadable_files_are_refused(tmp_path, text, words):
    path = tmp_path / "contract.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=words):
        Contract.from_file(path)


def test_lists_are_as_good_as_tuples():
    given = Contract(key_dims=[4, 8], value_dims=[2], mutates=["query"])
    assert given == Contract(key_dims=(4, 8), value_dims=(2,), mutates=("query",))
    # What is drawn under a contract is kept by it.
    assert hash(given) == hash(Contract(**vars(given)))
