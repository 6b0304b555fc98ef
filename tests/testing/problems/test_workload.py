"""Inputs that a user brings: read whole or refused, and judged as far as is proved."""

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from linkern.testing import OPERATORS, Contract, UsageError
from linkern.testing.problems import workload
from linkern.testing.problems.context import Scope
from linkern.testing.problems.workload import parts, read_workload

SIZES = {"b": 2, "h": 3, "g": 3, "t": 20, "s": 20, "k": 4, "v": 6, "m": 2}


def tensors(op, dtype=np.float32, **sizes):
    rng = np.random.default_rng(0)
    sizes = SIZES | sizes
    drawn = {}
    for one in OPERATORS[op].inputs:
        x = rng.normal(size=[sizes[axis] for axis in one.axes])
        if one.name == "log_decay":
            x = -abs(x)
        if one.name == "beta":
            x = 1 / (1 + np.exp(-x))
        drawn[one.name] = x.astype(dtype)
    return drawn


def read(tmp_path, op, stored, contract=None, name="inputs.safetensors"):
    read_workload.cache_clear()
    save_file({k: np.ascontiguousarray(x) for k, x in stored.items()}, tmp_path / name)
    return read_workload(str(tmp_path / name), op, contract or Contract())


def problem_of(read, op, contract=None):
    return read.problem(Scope(OPERATORS[op], contract or Contract(), read.dtype))


@pytest.mark.parametrize("op", ["linear_attention", "gla", "gated_delta_rule", "hgrn"])
def test_tensors_are_the_inputs_bit_for_bit(tmp_path, op):
    stored = tensors(op)
    one = read(tmp_path, op, stored)
    assert one.dtype == "float32"
    assert list(one.inputs) == list(OPERATORS[op].names)
    for name, x in stored.items():
        np.testing.assert_array_equal(one.inputs[name], x)


def test_names_of_the_field_and_bfloat16_are_read(tmp_path):
    stored = tensors("gla", ml_dtypes.bfloat16)
    short = {"query": "q", "key": "k", "value": "v", "log_decay": "g"}
    one = read(tmp_path, "gla", {short[name]: x for name, x in stored.items()})
    assert one.dtype == "bfloat16"
    for name, x in stored.items():
        np.testing.assert_array_equal(one.inputs[name], x)


def test_the_layout_is_the_declared_one(tmp_path):
    stored = tensors("gla")
    turned = {name: np.swapaxes(x, 1, 2) for name, x in stored.items()}
    one = read(tmp_path, "gla", turned, Contract(layout="bthd"))
    for name, x in stored.items():
        np.testing.assert_array_equal(one.inputs[name], x)


def without(stored, name):
    return {key: x for key, x in stored.items() if key != name}


def changed(name, function):
    return lambda stored: stored | {name: function(stored[name])}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: without(x, "value"), "`value` of gla is missing"),
        (lambda x: x | {"kee": x["key"]}, 'unknown input of gla "kee"'),
        (lambda x: x | {"q": x["query"]}, "`query` is there twice"),
        (changed("key", lambda x: x.astype(np.float64)), "one dtype, got float32 and"),
        (changed("key", lambda x: x.astype(np.int64)), "`key` must have a dtype of"),
        (changed("key", lambda x: x[..., :3]), "as many K as `query`, 4, got 3"),
        (changed("value", lambda x: x[:, :2]), "as many G as `value`, 2, got 3"),
        (
            changed("value", lambda x: x[0]),
            r"axes \(B, G, T, V\), got \(3, 20, 6\)",
        ),
        (changed("key", lambda x: x * np.nan), "`key` must have finite numbers"),
        (changed("key", lambda x: x * np.inf), "`key` must have finite numbers"),
        (changed("log_decay", lambda x: -x), r"`log_decay` must lie in \[-inf, 0\]"),
        (lambda x: {k: y[:, :, :0] for k, y in x.items()}, "`query` is empty"),
        (
            lambda x: x | {"output_cotangent": x["value"][..., :2]},
            r"`output_cotangent` must be \(2, 3, 20, 6\), got \(2, 3, 20, 2\)",
        ),
        (lambda x: {}, "`query` of gla is missing"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_in_one_sentence(tmp_path, change, said):
    with pytest.raises(UsageError, match=said) as refusal:
        read(tmp_path, "gla", change(tensors("gla")))
    assert "\n" not in str(refusal.value)
    assert "inputs.safetensors cannot be used: " in str(refusal.value)


def test_heads_of_values_are_a_multiple_of_those_of_queries(tmp_path):
    stored = tensors("retention", g=4)
    with pytest.raises(UsageError, match="G must be a multiple of H, 3, got 4"):
        read(tmp_path, "retention", stored)


def test_an_infinite_decay_is_one(tmp_path):
    stored = tensors("gla")
    stored["log_decay"][:, :, 3] = -np.inf
    assert np.isinf(read(tmp_path, "gla", stored).inputs["log_decay"]).any()


@pytest.mark.parametrize("cut", [0, 5, 100, -1])
def test_a_truncated_file_is_refused(tmp_path, cut):
    read(tmp_path, "gla", tensors("gla"))
    path = tmp_path / "inputs.safetensors"
    path.write_bytes(path.read_bytes()[:cut])
    read_workload.cache_clear()
    with pytest.raises(UsageError, match="it is no safetensors file"):
        read_workload(str(path), "gla", Contract())


def test_what_is_no_file_or_too_large_is_refused(tmp_path, monkeypatch):
    for name in ("absent.safetensors", "."):
        with pytest.raises(UsageError, match="cannot be used"):
            read_workload(str(tmp_path / name), "gla", Contract())
    monkeypatch.setattr(workload, "LARGEST", 100)
    with pytest.raises(UsageError, match="at most 100 bytes"):
        read(tmp_path, "gla", tensors("gla"))


@pytest.mark.parametrize(
    "op", ["linear_attention", "linear_attention_noncausal", "gla", "retention", "hgrn"]
)
@pytest.mark.parametrize("products", [2**24, 500, 100, 1])
def test_parts_have_the_exact_results_of_the_whole(tmp_path, monkeypatch, op, products):
    monkeypatch.setattr(workload, "PRODUCTS", products)
    whole = problem_of(read(tmp_path, op, tensors(op)), op)
    expected = whole.solve()
    taken = [*parts(whole)]
    assert taken
    for part in taken:
        got = part.problem.solve()
        np.testing.assert_allclose(got.output, expected.output[part.where], rtol=1e-9)
    entries = sum(part.problem.value.size for part in taken)
    assert (entries == whole.value.size) == (products == 2**24)


def test_heads_of_values_in_groups_meet_their_keys(tmp_path):
    whole = problem_of(read(tmp_path, "gla", tensors("gla", g=6)), "gla")
    taken = [*parts(whole)]
    expected = whole.solve().output
    for part in taken:
        got = part.problem.solve().output
        np.testing.assert_allclose(got, expected[part.where], rtol=1e-9)
    assert len(taken) == 12
