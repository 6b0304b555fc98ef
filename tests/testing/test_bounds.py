"""One assertion: it passes the reference, and refuses whatever is not the operator."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import linkern
from linkern.testing import OPERATORS, OutOfBoundError, assert_within_bound, strategies
from linkern.testing.errors import UsageError

CALLED = sorted(set(OPERATORS) & set(linkern.__all__))
STATEFUL = ("linear_attention", "gla", "gated_delta_rule", "rwkv4", "gsa", "based")


def inputs_of(op, rng, length=12, heads=2, dtype=np.float32):
    """Random inputs of an operator, by name."""
    sizes = {"b": 1, "h": heads, "g": heads, "t": length, "s": length}
    sizes |= {"k": 4, "v": 3, "m": 2, "l": 5}
    arrays = {}
    for one in OPERATORS[op].inputs:
        x = rng.normal(size=[sizes[axis] for axis in one.axes])
        if "decay" in one.name:
            x = -abs(x)
        if one.name == "beta" or one.draw == "positive":
            x = 1 / (1 + np.exp(-x))
        if one.name == "key" or one.draw == "unit":
            x = x / np.linalg.norm(x, axis=-1, keepdims=True)
        arrays[one.name] = x.astype(dtype)
    return arrays


@pytest.mark.parametrize("op", CALLED)
@settings(max_examples=4)
@given(data=st.data())
def test_the_reference_is_within_its_bounds(op, data):
    problem = data.draw(strategies.problems(op, kind="gradients"))
    result, pullback = linkern.vjp(getattr(linkern, op), *problem.inputs.values())
    assert_within_bound(
        result.output,
        op,
        *problem.inputs.values(),
        state=result.state,
        gradients=pullback(problem.cotangent),
        cotangent=problem.cotangent,
    )


@pytest.mark.parametrize("op", STATEFUL)
def test_states_are_passed_on(op):
    inputs = inputs_of(op, np.random.default_rng(1))
    axes = {x.name: x.token_axis for x in OPERATORS[op].inputs if x.per_token}
    first, rest = (
        {n: np.split(x, [5], axes[n])[i] if n in axes else x for n, x in inputs.items()}
        for i in (0, 1)
    )
    function = getattr(linkern, op)
    before = function(**first).state
    result, pullback = linkern.vjp(function, **rest, initial_state=before)
    cotangent = np.ones_like(result.output)
    gradients = pullback(cotangent)
    assert "initial_state" in gradients
    asked = {"state": result.state, "gradients": gradients}
    options = {"cotangent": cotangent, **rest}
    assert_within_bound(result.output, op, **options, initial_state=before, **asked)
    for name, part in asked.items():
        with pytest.raises(OutOfBoundError):
            assert_within_bound(None, op, **options, **{name: part})
    with pytest.raises(OutOfBoundError, match="the output of"):
        assert_within_bound(result.output, op, **rest)


def test_the_first_and_the_worst_entry_are_shown():
    inputs = inputs_of("gla", np.random.default_rng(2))
    output = linkern.gla(**inputs).output.copy()
    output[0, 1, 3, 2] *= np.float32(1.001)
    output[0, 1, 7, 0] = np.nan
    with pytest.raises(OutOfBoundError) as caught:
        assert_within_bound(output, "gla", **inputs)
    said = str(caught.value)
    assert "the output of gla is outside of the proved bound at 2 of 72 entries" in said
    assert "first  [0, 1, 3, 2]: got" in said
    assert "worst  [0, 1, 7, 0]: got nan" in said


@pytest.mark.parametrize("layout", ["bhtd", "bthd", "htd", "td"])
def test_layouts(layout):
    inputs = inputs_of("simple_gla", np.random.default_rng(3), heads=1)
    output = linkern.simple_gla(**inputs).output

    def turned(x):
        if layout == "bthd":
            return np.swapaxes(x, 1, 2)
        return x[(0,) * (4 - len(layout))]

    shown = {name: turned(x) for name, x in inputs.items()}
    named = {} if layout in ("bhtd", "htd", "td") else {"layout": layout}
    assert_within_bound(turned(output), "simple_gla", *shown.values(), **named)
    wrong = turned(output).copy()
    wrong[..., -1, 0] += 1
    with pytest.raises(OutOfBoundError):
        assert_within_bound(wrong, "simple_gla", *shown.values(), **named)


def test_names_of_the_field_and_declarations():
    inputs = inputs_of("gla", np.random.default_rng(4))
    query, key, value, log_decay = inputs.values()
    output = linkern.gla(query, key, value, log_decay, scale=0.25).output
    assert_within_bound(output, "gla", query, key, value, gk=log_decay, scale=0.25)
    with pytest.raises(OutOfBoundError):
        assert_within_bound(output, "gla", query, key, value, gk=log_decay)
    half = output.astype(np.float16).astype(np.float32)
    with pytest.raises(OutOfBoundError):
        assert_within_bound(half, "gla", *inputs.values(), scale=0.25)
    narrow = {"accumulator_dtype": "float16"}
    assert_within_bound(half, "gla", *inputs.values(), scale=0.25, contract=narrow)


def test_random_inputs_have_a_tighter_bound():
    inputs = inputs_of("linear_attention", np.random.default_rng(5), length=300)
    output = linkern.linear_attention(**inputs).output
    off = output.copy()
    off[..., -1, :] *= np.float32(1 + 2**-14)
    assert_within_bound(off, "linear_attention", **inputs)
    assert_within_bound(output, "linear_attention", **inputs, random_inputs=True)
    with pytest.raises(OutOfBoundError):
        assert_within_bound(off, "linear_attention", **inputs, random_inputs=True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(lib, dtype):
    if lib.name in ("array_api_strict",) or (lib.name, dtype) == ("numpy", "bfloat16"):
        pytest.skip(f"{lib.name} has no {dtype}")
    inputs = inputs_of("linear_attention", np.random.default_rng(6))
    kind = getattr(lib.module, dtype)
    narrow = [lib.array(x) for x in inputs.values()]
    narrow = [x.to(kind) if lib.name == "torch" else x.astype(kind) for x in narrow]
    output = linkern.linear_attention(*narrow).output
    assert_within_bound(output, "linear_attention", *narrow)
    with pytest.raises(OutOfBoundError):
        assert_within_bound(output * 1.125, "linear_attention", *narrow)


def test_a_wrong_shape_or_dtype_is_out_of_bounds():
    inputs = inputs_of("gla", np.random.default_rng(7))
    output = linkern.gla(**inputs).output
    with pytest.raises(OutOfBoundError, match="has shape"):
        assert_within_bound(output[:, :1], "gla", **inputs)
    wide = output.astype(np.float64)
    with pytest.raises(OutOfBoundError, match='`output_dtype="float64"`'):
        assert_within_bound(wide, "gla", **inputs)
    assert_within_bound(wide, "gla", **inputs, output_dtype="float64")


GOOD = inputs_of("gla", np.random.default_rng(8))


@pytest.mark.parametrize(
    ("arguments", "named", "sentence"),
    [
        (("glaa",), GOOD, 'unknown operator "glaa"; did you mean "gla"'),
        (("gla",), {**GOOD, "querry": 1}, "unknown input or declaration"),
        (("gla",), {"query": GOOD["query"]}, "`key` of gla is missing"),
        (("gla", *GOOD.values()), {"query": GOOD["query"]}, "`query` is passed twice"),
        (("gla", *GOOD.values(), 1), {}, "gla takes 4 inputs"),
        (("gla",), {**GOOD, "value": [[1.0]]}, "is expected, got builtins.list"),
        (("gla",), {**GOOD, "key": GOOD["key"][:, :, 1:]}, "sizes of the other inputs"),
        (("gla",), {**GOOD, "key": GOOD["key"][0]}, r"`key` must have the axes \(B, H"),
        (("gla",), {**GOOD, "eps": 1e-6}, "`eps` means nothing for gla"),
        (("gla",), {**GOOD, "initial_state": np.zeros(3)}, "must have the shapes"),
        (("gla",), {**GOOD, "gradients": {}}, "need the `cotangent`"),
        (
            ("gla",),
            {**GOOD, "gradients": {}, "cotangent": np.ones((2, 2), np.float32)},
            "`cotangent` must have the shape of the output",
        ),
        (
            ("linear_attention", *list(GOOD.values())[:3]),
            {"initial_state": np.zeros((1, 2, 4, 3), np.float32)},
            "got the memory alone",
        ),
    ],
)
def test_what_is_typed_wrong_gets_a_sentence(arguments, named, sentence):
    with pytest.raises(UsageError, match=sentence):
        assert_within_bound(None, *arguments, **named)


def test_what_cannot_be_proved_is_no_pass():
    inputs = inputs_of("linear_attention", np.random.default_rng(9), length=700)
    output = linkern.linear_attention(**inputs).output
    narrow = {"accumulator_dtype": "bfloat16"}
    with pytest.raises(UsageError, match="nothing is proved of"):
        assert_within_bound(output, "linear_attention", **inputs, contract=narrow)
