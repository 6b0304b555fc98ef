"""Correct kernels of the selective scan, in two orders of summation.

Called as ``f(query, key, value, dt, log_decay_rate, skip=None, scale=None,
initial_state=None)`` on NumPy arrays ``(B, H, T, .)``, they return output and state.
"""

from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import Array, wide
from linkern.testing.kernels.correct.decays import started

__all__ = ["selective_scan_by_doubling", "selective_scan_by_tokens"]

Result = tuple[Array, Any]
# Tokens of a scan by doubling, which keeps a state for each of them.
_SPAN = 50


def _terms(
    query: Array,
    key: Array,
    value: Array,
    dt: Array,
    rate: Array,
    scale: float | None,
) -> tuple[Array, Array, Array]:
    """Return queries, and the decay and the write of each entry of each token."""
    q, k, x, steps = wide(query), wide(key), wide(value), wide(dt)
    a = wide(rate).swapaxes(-1, -2)[..., None, :, :]
    decay = np.exp(steps[..., None, :] * a)
    written = k[..., :, None] * (steps * x)[..., None, :]
    return q if scale is None else q * np.asarray(scale, q.dtype), decay, written


def _with_skip(y: Array, value: Array, skip: Array | None) -> Array:
    if skip is not None:
        y = y + wide(skip)[..., None, :] * wide(value)
    return y.astype(value.dtype)


def selective_scan_by_tokens(
    query: Array,
    key: Array,
    value: Array,
    dt: Array,
    log_decay_rate: Array,
    skip: Array | None = None,
    *,
    scale: float | None = None,
    initial_state: Array | None = None,
) -> Result:
    """Go token by token."""
    state = started(initial_state, wide(value), key.shape[-1])
    y = np.zeros_like(wide(value))
    for t in range(value.shape[-2]):
        at = (..., slice(t, t + 1), slice(None))
        gates = dt[at], log_decay_rate
        q, decay, written = _terms(query[at], key[at], value[at], *gates, scale)
        state = decay[..., 0, :, :] * state + written[..., 0, :, :]
        y[at] = q @ state
    return _with_skip(y, value, skip), state


def selective_scan_by_doubling(
    query: Array,
    key: Array,
    value: Array,
    dt: Array,
    log_decay_rate: Array,
    skip: Array | None = None,
    *,
    scale: float | None = None,
    initial_state: Array | None = None,
) -> Result:
    """Compose the maps ``h -> a h + b`` of a span, doubling the reach each time."""
    state = started(initial_state, wide(value), key.shape[-1])
    y = np.zeros_like(wide(value))
    for first in range(0, value.shape[-2], _SPAN):
        at = (..., slice(first, first + _SPAN), slice(None))
        gates = dt[at], log_decay_rate
        q, decay, h = _terms(query[at], key[at], value[at], *gates, scale)
        reach = 1
        while reach < h.shape[-3]:
            late = (..., slice(reach, None), slice(None), slice(None))
            early = (..., slice(None, -reach), slice(None), slice(None))
            begun = (..., slice(None, reach), slice(None), slice(None))
            later, both = decay[late] * h[early] + h[late], decay[late] * decay[early]
            h = np.concatenate([h[begun], later], axis=-3)
            decay = np.concatenate([decay[begun], both], axis=-3)
            reach *= 2
        h = decay * state[..., None, :, :] + h
        y[at] = np.einsum("...tk,...tkv->...tv", q, h)
        state = h[..., -1, :, :]
    return _with_skip(y, value, skip), state
