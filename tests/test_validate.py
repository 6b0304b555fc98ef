"""Bad input gets one clear sentence: the name, the rule, what was got, what to do."""

import re

import numpy as np
import pytest

import linkern
from linkern import State


def f32(*shape):
    return np.ones(shape, np.float32)


GOOD = {"query": f32(2, 5, 3), "key": f32(2, 5, 3), "value": f32(2, 5, 4)}

CASES = [
    (
        {"value": f32(2, 6, 4)},
        ValueError,
        "`key` and `value` must have the same length (axis -2), got 5 and 6.",
    ),
    (
        {"query": f32(2, 4, 3)},
        ValueError,
        "`query` and `key` must have the same length (axis -2) when `causal` is True, got 4 and 5; use `causal=False`",
    ),
    (
        {"query": f32(2, 5, 2)},
        ValueError,
        "`query` and `key` must have the same key dimension (last axis), got 2 and 3.",
    ),
    (
        {"query": f32(3)},
        ValueError,
        "`query` must have shape (..., length, dim), got (3,).",
    ),
    (
        {"key": f32(3, 5, 3)},
        ValueError,
        "the leading axes of query, key and value must broadcast against each other, got (2,), (3,), (2,).",
    ),
    (
        {"query": np.ones((2, 5, 3), int)},
        TypeError,
        "`query` must have a real floating dtype (float16, bfloat16, float32 or float64), got int64.",
    ),
    (
        {"value": np.ones((2, 5, 4), complex)},
        TypeError,
        "`value` must have a real floating dtype",
    ),
    (
        {"key": [[1.0]]},
        TypeError,
        "`key` must be an array of an array API library (NumPy, PyTorch, JAX, CuPy, ...), got list; convert it first.",
    ),
    (
        {"value": np.ones((2, 5, 4))},
        TypeError,
        "`query`, `key` and `value` must have the same dtype, got float32, float32, float64.",
    ),
    (
        {"form": "fast"},
        ValueError,
        '`form` must be one of "auto", "recurrent", "chunkwise", "parallel", got \'fast\'.',
    ),
    ({"form": None}, ValueError, "`form` must be one of"),
    ({"chunk_size": 0}, ValueError, "`chunk_size` must be a positive integer, got 0."),
    (
        {"chunk_size": float("nan")},
        ValueError,
        "`chunk_size` must be a positive integer, got nan.",
    ),
    (
        {"chunk_size": True},
        ValueError,
        "`chunk_size` must be a positive integer, got True.",
    ),
    (
        {"chunk_size": "64"},
        TypeError,
        "`chunk_size` must be a positive integer, got '64'.",
    ),
    (
        {"chunk_size": 8, "form": "parallel"},
        ValueError,
        '`chunk_size` applies to form "chunkwise" only, got form "parallel".',
    ),
    ({"causal": None}, TypeError, "`causal` must be True or False, got None."),
    ({"normalize": 1}, TypeError, "`normalize` must be True or False, got 1."),
    ({"scale": 0.0}, ValueError, "`scale` must be finite and not zero, got 0.0."),
    (
        {"scale": float("nan")},
        ValueError,
        "`scale` must be finite and not zero, got nan.",
    ),
    ({"scale": "1"}, TypeError, "`scale` must be a real number or None, got '1'."),
    (
        {"feature_map": "elu"},
        TypeError,
        "`feature_map` must be a callable from (..., K) to (..., F), such as `linkern.elu_plus_one`, got 'elu'.",
    ),
    (
        {"feature_map": lambda x: None},
        TypeError,
        "`feature_map` must return an array of the library it was given (numpy), got NoneType for `query`.",
    ),
    (
        {"feature_map": lambda x: x[..., :1, :]},
        ValueError,
        "`feature_map` must keep every axis but the last: it took `query` from (2, 5, 3) to (2, 1, 3).",
    ),
    (
        {"feature_map": lambda x: x.astype(float)},
        TypeError,
        "`feature_map` must keep the dtype it was given (float32), got float64 for `query`.",
    ),
    (
        {"initial_state": f32(2, 3, 4)},
        TypeError,
        "`initial_state` must be a `State` where rows are divided by a normalizer, got one array; pass `linkern.State(memory, normalizer)`.",
    ),
    (
        {"initial_state": State(f32(2, 3, 4), None)},
        ValueError,
        "`initial_state` must carry a normalizer when `normalize` is True, got None; start from",
    ),
    (
        {"initial_state": State(f32(2, 3, 4), f32(2, 3)), "normalize": False},
        ValueError,
        "`initial_state` must not carry a normalizer when `normalize` is False",
    ),
    (
        {"initial_state": State(f32(2, 4, 3), f32(2, 3))},
        ValueError,
        "`initial_state.memory` must have shape (..., K, V) = (2, 3, 4), or leading axes that broadcast to it, got (2, 4, 3); of a memory (..., V, K) pass x.swapaxes(-2, -1).",
    ),
    (
        {"initial_state": State(f32(5, 2, 3, 4), f32(2, 3))},
        ValueError,
        "`initial_state.memory` must have shape (..., K, V) = (2, 3, 4)",
    ),
    (
        {"initial_state": State(f32(2, 3, 4), f32(2, 4))},
        ValueError,
        "`initial_state.normalizer` must have shape (..., K) = (2, 3)",
    ),
    (
        {"initial_state": State(np.ones((2, 3, 4)), np.ones((2, 3)))},
        TypeError,
        "`key`, `initial_state.memory` and `initial_state.normalizer` must have the same dtype",
    ),
]


@pytest.mark.parametrize(
    ("change", "error", "sentence"), CASES, ids=[c[2][:60] for c in CASES]
)
def test_linear_attention_refuses(change, error, sentence):
    options = {**GOOD, **change}
    inputs = [options.pop(name) for name in ("query", "key", "value")]
    with pytest.raises(error, match=re.escape(sentence)):
        linkern.linear_attention(*inputs, **options)


def test_libraries_do_not_mix():
    strict = pytest.importorskip("array_api_strict")
    other = strict.asarray(GOOD["key"])
    sentence = "`query`, `key` and `value` must come from one array library, got numpy, array_api_strict, numpy."
    with pytest.raises(TypeError, match=re.escape(sentence)):
        linkern.linear_attention(GOOD["query"], other, GOOD["value"])


def test_devices_do_not_mix():
    strict = pytest.importorskip("array_api_strict")
    arrays = [strict.asarray(GOOD[name]) for name in ("query", "key", "value")]
    arrays[1] = strict.asarray(arrays[1], device=strict.Device("device1"))
    with pytest.raises(
        ValueError, match=r"must have the same device, got .*CPU_DEVICE.*device1"
    ):
        linkern.linear_attention(*arrays)


def test_step_names_the_shape_of_a_token():
    sentence = "`value` must have shape (..., dim), got ()."
    with pytest.raises(ValueError, match=re.escape(sentence)):
        linkern.linear_attention_step(None, f32(3), f32(3), f32())


MASKED = np.ma.masked_greater(np.ones((5, 3)), 2)
X = np.ones((5, 3))
CALLS_OF_MASKED = {
    "query": lambda: linkern.gla(MASKED, X, X),
    "key": lambda: linkern.linear_attention(X, MASKED, X, form="recurrent"),
    "value": lambda: linkern.softmax_attention(X, X, MASKED),
    "log_decay": lambda: linkern.gla(X, X, X, -MASKED),
    "beta": lambda: linkern.vjp(linkern.delta_rule, X, X, X, MASKED[:, 0]),
    "initial_state.memory": lambda: linkern.linear_attention(
        X, X, X, initial_state=State(MASKED[:3], X[0])
    ),
    "initial_state.normalizer": lambda: linkern.vjp(
        linkern.linear_attention, X, X, X, initial_state=State(X[:3], MASKED[0])
    ),
    "like": lambda: State.zeros(2, 2, like=MASKED),
    "later.memory": lambda: State(X, None).combine(State(MASKED, None)),
    "x": lambda: linkern.elu_plus_one(MASKED),
}


@pytest.mark.parametrize("name", CALLS_OF_MASKED)
def test_masked_arrays_are_refused(name):
    sentence = (
        f"`{name}` must be an array of an array API library (NumPy, PyTorch, JAX, "
        "CuPy, ...), got MaskedArray, whose mask would be ignored; pass "
        "x.filled(number)."
    )
    with pytest.raises(TypeError, match=re.escape(sentence)):
        CALLS_OF_MASKED[name]()


def test_a_masked_token_is_refused_after_a_plain_one():
    state = linkern.step(linkern.gla, None, X[0], X[0], X[0]).state
    linkern.step(linkern.gla, state, X[0], X[0], X[0])
    with pytest.raises(TypeError, match=r"`key` must be an array .* got MaskedArray"):
        linkern.step(linkern.gla, state, X[0], MASKED[0], X[0])


def test_a_masked_initial_state_is_no_state():
    with pytest.raises(TypeError, match="`State` or None, got MaskedArray"):
        linkern.gla(X, X, X, initial_state=MASKED[:3])


def test_matrices_stay_refused_after_a_feature_map_has_met_one():
    matrix = X.view(np.matrix)
    for function in (linkern.elu_plus_one, linkern.exp, linkern.relu):
        with pytest.raises(TypeError, match="got matrix; convert it first"):
            function(matrix)
    with pytest.raises(TypeError, match=r"`query` must be an array .*, got matrix"):
        linkern.gla(matrix, matrix, matrix)
