"""Problems of every operator, and what the plain loops say of them."""

import numpy as np

import linkern
from tests.operators.paper_loops import CONSTANT, LOOPS, over_heads, random_inputs

NAMES = tuple(LOOPS)
UNIT_SCALE = (
    *("hgrn", "rwkv4", "rwkv7", "mesa", "log_linear_attention"),
    *("linear_attention", "selective_scan", "mamba3", "mamba3_mimo"),
)
ROOT_SCALE = tuple(name for name in NAMES if name not in UNIT_SCALE)
# One of each kind: a decay for each token, for each channel, an erase, a read before
# the write, a transposed memory, several steps, two passes, a quotient, a solve.
CLASSES = (
    "simple_gla",
    "gla",
    "kda",
    "rwkv6",
    "rwkv7",
    "oja",
    "gated_delta_product",
    "abc",
    "based",
    "mesa",
    "selective_scan",
    "mamba3",
    "mamba3_mimo",
    "log_linear_attention",
    "rwkv4",
)
STATE_PARTS = ("memory", "normalizer")


def problem(name, rng, length=9, *, batch=1, heads=2, **sizes):
    """Inputs ``(B, H, T, ...)``; what has no tokens is one for each head."""
    drawn = [
        [random_inputs(name, rng, length, **sizes) for _ in range(heads)]
        for _ in range(batch)
    ]
    found = {
        key: np.stack([[head[key] for head in row] for row in drawn])
        for key in drawn[0][0]
    }
    for key in found:
        if key in CONSTANT or (name == "rwkv4" and key == "log_decay"):
            found[key] = found[key][0]
    return found


def scale_of(name, inputs):
    return inputs["key"].shape[-1] ** -0.5 if name in ROOT_SCALE else 1.0


def expected(name, inputs, state=None, scale=None, **keywords):
    """Output and state of the plain loop, in float64."""
    wide = {k: np.asarray(x, dtype=np.float64) for k, x in inputs.items()}
    scale = scale_of(name, inputs) if scale is None else scale
    return over_heads(name, wide, scale, state, **keywords)


def operator(name):
    return getattr(linkern, name)


def parts(state):
    return [x for x in (state.memory, state.normalizer) if x is not None]


def close(got, due):
    """Equal but for rounding in float64: about structure, not about precision."""
    got, due = np.asarray(got), np.asarray(due)
    assert got.shape == due.shape
    same = got == due  # infinities are exact
    with np.errstate(invalid="ignore"):
        near = abs(got - due) <= 2.0**-36 * (
            1 + abs(due[np.isfinite(due)]).max(initial=0)
        )
    assert (same | near).all(), abs(got - due).max()
