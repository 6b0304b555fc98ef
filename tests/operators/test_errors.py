"""Bad input gets a clear error, and names what would fit."""

import numpy as np
import pytest

import linkern
from linkern import State
from tests.operators.problems import problem

QUERY = np.ones((2, 5, 4))  # (heads, T, K)
VALUE = np.ones((2, 5, 3))
GATE = -np.ones((2, 5))
MEMORY = np.zeros((2, 4, 3))


def called_gla():
    """Return a function of a user that has the name of an operator."""

    def gla(query, key, value):
        return linkern.gla(query, key, value)

    return gla


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (
            lambda: linkern.simple_gla(QUERY, QUERY, VALUE, -GATE),
            ValueError,
            "`log_decay` must be a natural logarithm of a decay, so 0 or negative",
        ),
        (
            lambda: linkern.delta_rule(QUERY, QUERY, VALUE, 3 * GATE),
            ValueError,
            r"`beta` must be in \[0, 2\]",
        ),
        (
            lambda: linkern.simple_gla(QUERY, QUERY, VALUE, np.zeros((2, 5, 4))),
            ValueError,
            r"`log_decay` must have shape \(..., T\) = \(..., 5\), where T = 5 is that",
        ),
        (
            lambda: linkern.kda(QUERY, QUERY, VALUE, GATE),
            ValueError,
            r"`log_decay` must have shape \(..., T, K\) = \(..., 5, 4\)",
        ),
        (
            lambda: linkern.kda(QUERY, QUERY, VALUE, np.zeros((3, 5, 4))),
            ValueError,
            r"`log_decay` must have shape \(2, 5, 4\), or leading axes that broadcast",
        ),
        (
            lambda: linkern.gla(QUERY, QUERY[..., :2], VALUE),
            ValueError,
            r"`key` must have shape \(..., T, K\) = \(..., 5, 4\)",
        ),
        (
            lambda: linkern.gla(QUERY, QUERY[0, 0], VALUE),
            ValueError,
            r"`key` must have shape \(..., T, K\), got \(4,\)",
        ),
        (
            lambda: linkern.gated_delta_product(QUERY, QUERY[:, :4], VALUE[:, :4]),
            ValueError,
            r"`key` must have a multiple of the length of `query` \(axis -2\), got 4",
        ),
        (
            lambda: linkern.gla(
                QUERY,
                QUERY,
                VALUE,
                cu_seqlens=[0, 5],
                initial_state=State(MEMORY, None),
            ),
            ValueError,
            "`initial_state.memory` must have the packed sequences as its first axis",
        ),
        (
            lambda: linkern.linear_attention(
                QUERY, QUERY, VALUE, causal=False, cu_seqlens=[0, 5]
            ),
            ValueError,
            "`cu_seqlens` needs `causal=True`",
        ),
        (
            lambda: linkern.kda(
                QUERY, QUERY, VALUE, initial_state=State(MEMORY.mT, None)
            ),
            ValueError,
            r"`initial_state.memory` must have shape \(..., K, V\) = \(2, 4, 3\)",
        ),
        (
            lambda: linkern.kda(
                QUERY, QUERY, VALUE, initial_state=State(MEMORY, MEMORY[..., 0])
            ),
            ValueError,
            "`initial_state` must not carry a normalizer for this operator",
        ),
        (
            lambda: linkern.based(
                QUERY, QUERY, VALUE, initial_state=State(MEMORY, None)
            ),
            ValueError,
            "`initial_state` must carry a normalizer for this operator",
        ),
        (
            lambda: linkern.kda(
                QUERY,
                QUERY,
                VALUE,
                initial_state=State(MEMORY.astype(np.float32), None),
            ),
            TypeError,
            "must have the same dtype, got float64, float32",
        ),
        (
            lambda: linkern.gla(QUERY, QUERY.astype(np.float32), VALUE),
            TypeError,
            "`query`, `key` and `value` must have the same dtype",
        ),
        (
            lambda: linkern.gla(QUERY, QUERY, VALUE, GATE.tolist()),
            TypeError,
            "`log_decay` must be an array of an array API library",
        ),
        (
            lambda: linkern.hgrn(VALUE, scale=2.0),
            ValueError,
            "`scale` must be None for hgrn: there is no query to scale",
        ),
        (
            lambda: linkern.lightning_attention(QUERY, QUERY, VALUE, layer=2, layers=2),
            ValueError,
            "`layer` must be less than `layers`, got 2 and 2",
        ),
        (
            lambda: linkern.log_linear_attention(
                QUERY, QUERY, VALUE, None, np.ones((2, 5, 3))
            ),
            ValueError,
            r"`level_scales` must have at least 4 levels \(last axis\)",
        ),
        (
            lambda: linkern.gla(QUERY, QUERY, VALUE, form="fast"),
            ValueError,
            "`form` must be one of",
        ),
        (
            lambda: linkern.gla(None, QUERY, VALUE),
            TypeError,
            "`query` must be an array",
        ),
        (
            lambda: linkern.step(np.exp, None, QUERY),
            TypeError,
            "`op` must be an operator, such as `linkern.kda`",
        ),
        (
            lambda: linkern.step(called_gla(), None, QUERY, QUERY, VALUE),
            TypeError,
            "`op` must be an operator, such as `linkern.kda`, got <function",
        ),
        (
            lambda: linkern.mesa(QUERY, QUERY, VALUE, ridge=np.zeros((2, 4))),
            ValueError,
            "`ridge` must be positive",
        ),
        (
            lambda: linkern.preconditioned_kda(
                QUERY, QUERY, VALUE, preconditioner_beta=-np.ones(QUERY.shape[:-1])
            ),
            ValueError,
            "`preconditioner_beta` must be zero or positive",
        ),
        (
            lambda: linkern.momentum_delta_rule(
                QUERY, QUERY, VALUE, momentum_beta=-np.ones(QUERY.shape[:-1])
            ),
            ValueError,
            "`momentum_beta` must be zero or positive",
        ),
        (
            lambda: linkern.momentum_delta_rule(
                QUERY, QUERY, VALUE, momentum_log_decay=np.ones(QUERY.shape[:-1])
            ),
            ValueError,
            "`momentum_log_decay` must be a natural logarithm",
        ),
    ],
)
def test_a_mistake_is_named(call, error, sentence):
    with pytest.raises(error, match=sentence):
        call()


def test_gates_may_be_wider_than_the_rest():
    inputs = problem("kda", np.random.default_rng(0), 6)
    half = {k: inputs[k].astype(np.float16) for k in ("query", "key", "value")}
    gates = {k: inputs[k].astype(np.float32) for k in ("log_decay", "beta")}
    result = linkern.kda(**half, **gates)
    assert result.output.dtype == np.float16
    wide = linkern.kda(**{k: x.astype(np.float32) for k, x in half.items()}, **gates)
    np.testing.assert_array_equal(result.output, wide.output.astype(np.float16))


@pytest.mark.parametrize("size", [200.0, 1e4, 1e9])
def test_weights_given_by_logarithms_may_have_any_size(size):
    """What a running average of exponentials cannot hold, its logarithm can."""
    rng = np.random.default_rng(1)
    logits = size * rng.normal(size=(7, 3))
    value = rng.normal(size=(7, 3))
    output = linkern.rwkv4(logits, value, np.full(3, -size / 100)).output
    assert np.isfinite(output).all()
    low, high = np.minimum.accumulate(value), np.maximum.accumulate(value)
    assert ((low - 1e-12 <= output) & (output <= high + 1e-12)).all()
    # Where one weight is all there is, its value comes out.
    alone = np.zeros((7, 3))
    alone[2] = size
    after = linkern.rwkv4(alone, value).output[3:]
    np.testing.assert_allclose(after, np.broadcast_to(value[2], (4, 3)), rtol=1e-12)
    slots = linkern.abc(value, value, value, logits)
    assert np.isfinite(slots.output).all()
