"""Correct kernels of operators that erase before they write, in many orders.

Called as ``f(query, key, value, ..., scale=None, initial_state=None)`` on NumPy arrays
``(B, H, T, .)``, they return output and state.
"""

from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import Array, wide
from linkern.testing.kernels.correct.decays import scaled, started

__all__ = ["gdn2_by_tokens", "oja_by_tokens", "oja_transposed"]

Result = tuple[Array, Any]


def gdn2_by_tokens(
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None = None,
    erase_gate: Array | None = None,
    write_gate: Array | None = None,
    *,
    scale: float | None = None,
    initial_state: Array | None = None,
) -> Result:
    """Go token by token."""
    q, k, v = scaled(query, scale), wide(key), wide(value)
    state, output = started(initial_state, v, k.shape[-1]), np.zeros_like(v)
    decay = np.ones_like(k) if log_decay is None else np.exp(wide(log_decay))
    erased = k if erase_gate is None else wide(erase_gate) * k
    written = v if write_gate is None else wide(write_gate) * v
    for t in range(v.shape[-2]):
        state = decay[..., t, :, None] * state
        held = np.einsum("...k,...kv->...v", erased[..., t, :], state)
        new = written[..., t, :] - held
        state = state + k[..., t, :, None] * new[..., None, :]
        output[..., t, :] = np.einsum("...k,...kv->...v", q[..., t, :], state)
    return output.astype(query.dtype), state


def oja_by_tokens(
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None = None,
    beta: Array | None = None,
    *,
    scale: float | None = None,
    initial_state: Array | None = None,
) -> Result:
    """Go token by token."""
    q, k, v = scaled(query, scale), wide(key), wide(value)
    state, output = started(initial_state, v, k.shape[-1]), np.zeros_like(v)
    decay = np.ones_like(v) if log_decay is None else np.exp(wide(log_decay))
    rate = np.ones(v.shape[:-1], v.dtype) if beta is None else wide(beta)
    for t in range(v.shape[-2]):
        state = state * decay[..., t, None, :]
        held = (state * v[..., t, None, :]).sum(-1)
        written = rate[..., t, None] * (k[..., t, :] - held)
        state = state + written[..., :, None] * v[..., t, None, :]
        output[..., t, :] = (q[..., t, None, :] @ state)[..., 0, :]
    return output.astype(query.dtype), state


def oja_transposed(
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None = None,
    beta: Array | None = None,
    *,
    scale: float | None = None,
    initial_state: Array | None = None,
) -> Result:
    """Keep the transposed state, and read it after the last token has been written."""
    q, k, v = scaled(query, scale), wide(key), wide(value)
    state = np.swapaxes(started(initial_state, v, k.shape[-1]), -1, -2)
    decay = np.ones_like(v) if log_decay is None else np.exp(wide(log_decay))
    scaled_value = v if beta is None else wide(beta)[..., None] * v
    states = np.zeros((*v.shape, k.shape[-1]), v.dtype)
    for t in range(v.shape[-2]):
        state = decay[..., t, :, None] * state
        held = np.einsum("...v,...vk->...k", v[..., t, :], state)
        new = k[..., t, :] - held
        state = state + scaled_value[..., t, :, None] * new[..., None, :]
        states[..., t, :, :] = state
    output = np.einsum("...tvk,...tk->...tv", states, q)
    return output.astype(query.dtype), np.swapaxes(state, -1, -2)
