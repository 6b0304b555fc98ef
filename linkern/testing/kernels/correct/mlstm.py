"""Correct kernels of the mLSTM: over the largest weight so far, or all pairs at once.

Called as ``f(query, key, value, input_gate=None, log_decay=None, scale=None,
initial_state=None)`` on NumPy arrays ``(B, H, T, .)``, they return output and
``(memory, log_weight)``: matrix memory and normaliser over the sum of their weights.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import Array, Kernel, wide
from linkern.testing.kernels.correct.decays import scaled

__all__ = ["by_tokens", "floored", "in_pairs"]

Result = tuple[Array, Any]
Divide = Callable[[Array, Array, Array], Array]


def floored(above: Array, below: Array, log_weight: Array) -> Array:
    """Return ``a e^m / max(|b| e^m, 1)`` without an exponential that overflows."""
    lift = np.exp(np.minimum(log_weight, 0))
    least = np.exp(-np.maximum(log_weight, 0))
    return lift * above / np.maximum(lift * abs(below), least)


def _gate(gate: Array | None, v: Array) -> Array:
    return np.zeros(v.shape[:-1], v.dtype) if gate is None else wide(gate)


def _begun(state: Any, k: Array, v: Array) -> tuple[Array, Array]:
    """Return the memory with its column, and the logarithm of its weight."""
    if state is not None:
        return wide(state[0]), wide(state[1])[..., 0]
    shape = (*v.shape[:-2], k.shape[-1], v.shape[-1] + 1)
    return np.zeros(shape, v.dtype), np.full(v.shape[:-2], -np.inf, v.dtype)


def _with_column(v: Array) -> Array:
    return np.concatenate([v, np.ones_like(v[..., :1])], axis=-1)


def _after(weight: Array, m: Array) -> Array:
    """Return ``m + log w``; the logarithm of nothing where there is no weight."""
    with np.errstate(divide="ignore"):
        return m + np.log(weight)


def by_tokens(divide: Divide = floored) -> Kernel:
    """Return a kernel that goes token by token, over the largest weight so far."""

    def kernel(
        query: Array,
        key: Array,
        value: Array,
        input_gate: Array | None = None,
        log_decay: Array | None = None,
        *,
        scale: float | None = None,
        initial_state: Any = None,
    ) -> Result:
        q, k, v = scaled(query, scale), wide(key), wide(value)
        (memory, m), values = _begun(initial_state, k, v), _with_column(v)
        weight = np.where(np.isneginf(m), 0, 1).astype(v.dtype)
        i, g, output = _gate(input_gate, v), _gate(log_decay, v), np.zeros_like(v)
        for t in range(v.shape[-2]):
            largest = np.maximum(g[..., t] + m, i[..., t])
            old, new = np.exp(g[..., t] + m - largest), np.exp(i[..., t] - largest)
            written = k[..., t, :, None] * values[..., t, None, :]
            memory = old[..., None, None] * memory + new[..., None, None] * written
            weight, m = old * weight + new, largest
            read = np.einsum("...k,...kv->...v", q[..., t, :], memory)
            parts = read[..., :-1], read[..., -1:]
            output[..., t, :] = divide(*parts, m[..., None])
        filled = np.where(weight > 0, weight, 1)[..., None, None]
        state = memory / filled, _after(weight, m)[..., None]
        return output.astype(query.dtype), state

    return kernel


def in_pairs(
    query: Array,
    key: Array,
    value: Array,
    input_gate: Array | None = None,
    log_decay: Array | None = None,
    *,
    scale: float | None = None,
    initial_state: Any = None,
) -> Result:
    """Weigh all pairs at once, each row over its largest weight."""
    q, k, v = scaled(query, scale), wide(key), wide(value)
    (memory, z), values = _begun(initial_state, k, v), _with_column(v)
    i, g, length = _gate(input_gate, v), _gate(log_decay, v), v.shape[-2]
    if not length:
        return v.astype(query.dtype), (memory, z[..., None])
    # Sums of gates between two tokens, each from zero on: none is a difference.
    between = np.repeat(g[..., None], length, axis=-1)
    between = np.cumsum(np.where(np.tri(length, k=-1, dtype=bool), between, 0), -2)
    logs = np.where(np.tri(length, dtype=bool), between + i[..., None, :], -np.inf)
    since = np.cumsum(g, axis=-1) + z[..., None]
    m = np.maximum(logs.max(-1), since)
    weights = np.exp(logs - m[..., None])
    before = np.exp(since - m)[..., None]
    scores = weights * (q @ k.swapaxes(-1, -2))
    read = scores @ values + before * (q @ memory)
    output = floored(read[..., :-1], read[..., -1:], m[..., None])
    last = weights[..., -1, :, None]
    total = last.sum(-2) + before[..., -1, :]
    memory = (last * k).swapaxes(-1, -2) @ values + before[..., -1, :, None] * memory
    log_weight = m[..., -1:] + np.log(total)
    return output.astype(query.dtype), (memory / total[..., None], log_weight)
