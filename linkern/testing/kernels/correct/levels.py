"""Correct kernels of log-linear attention: a memory for each scale of distance.

A token reads another at the level of the highest bit in which their positions differ;
itself it reads at level 0.
"""

from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import Array, wide

__all__ = ["levels_by_pairs", "levels_by_tokens"]

Result = tuple[Array, Any]


def _scaled(query: Array, scale: float | None) -> Array:
    q = wide(query)
    return q * np.asarray(1.0 if scale is None else scale, q.dtype)


def _open(log_decay: Array | None, v: Array) -> Array:
    return np.zeros(v.shape[:-1], v.dtype) if log_decay is None else wide(log_decay)


def _empty(v: Array, k: Array, levels: int) -> Array:
    return np.zeros((*v.shape[:-2], levels, k.shape[-1], v.shape[-1]), v.dtype)


def levels_by_tokens(
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None = None,
    level_scales: Array = None,
    *,
    scale: float | None = None,
    position: int = 0,
    initial_state: Array | None = None,
) -> Result:
    """Keep the memories as a Fenwick tree: full ones move up before a token is read."""
    q, k, v = _scaled(query, scale), wide(key), wide(value)
    g, scales = _open(log_decay, v), wide(level_scales)
    levels = scales.shape[-1]
    state = _empty(v, k, levels) if initial_state is None else wide(initial_state)
    output = np.zeros_like(v)
    for t in range(v.shape[-2]):
        state = np.exp(g[..., t, None, None, None]) * state
        state[..., 0, :, :] = k[..., t, :, None] * v[..., t, None, :]
        reads = (q[..., t, None, None, :] @ state)[..., 0, :]
        output[..., t, :] = (scales[..., t, :, None] * reads).sum(-2)
        following = position + t + 1
        level = (following & -following).bit_length()
        below = state[..., :level, :, :].sum(-3)
        state[..., :level, :, :] = 0
        if level < levels:
            state[..., level, :, :] = below
    return output.astype(query.dtype), state


def levels_by_pairs(
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None = None,
    level_scales: Array = None,
    *,
    scale: float | None = None,
    position: int = 0,
    initial_state: Array | None = None,
) -> Result:
    """Weigh all pairs at once, by the level of each."""
    q, k, v = _scaled(query, scale), wide(key), wide(value)
    g, scales = _open(log_decay, v), wide(level_scales)
    levels, length = scales.shape[-1], v.shape[-2]
    times = position + np.arange(length + 1)
    level = _bits(times[:, None] ^ times)
    log = np.full((*g.shape[:-1], length + 1, length), -np.inf, v.dtype)
    for t in range(length):
        log[..., t, t] = 0
        if t:
            log[..., t, :t] = log[..., t - 1, :t] + g[..., t : t + 1]
    if length:
        log[..., length, :] = log[..., length - 1, :]
    weights, within = np.exp(log), np.minimum(level, levels - 1)[:length, :length]
    chosen = np.take_along_axis(scales, np.broadcast_to(within, (*g.shape, length)), -1)
    chosen = np.where(level[:length, :length] < levels, chosen, 0)
    scores = q @ k.swapaxes(-1, -2)
    output = (chosen * weights[..., :length, :] * scores) @ v
    kept = [weights[..., -1, :] * (level[length, :length] == i) for i in range(levels)]
    state = np.stack([(w[..., None] * k).swapaxes(-1, -2) @ v for w in kept], axis=-3)
    if initial_state is not None:
        since = np.exp(np.cumsum(g, axis=-1))
        for i in range(levels):
            bucket = wide(initial_state)[..., i, :, :]
            later = np.maximum(i, level[0])
            at = [s if s < levels else 0 for s in later[:length]]
            seen = np.where(later[:length] < levels, scales[..., range(length), at], 0)
            output = output + (seen * since)[..., None] * (q @ bucket)
            if later[length] < levels:
                decayed = since[..., -1, None, None] if length else 1
                state[..., later[length], :, :] += decayed * bucket
    return output.astype(query.dtype), state


def _bits(x: Array) -> Array:
    """Return the number of bits of each integer."""
    return np.frexp(x.astype(np.float64))[1]
