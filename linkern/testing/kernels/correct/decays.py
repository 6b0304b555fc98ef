"""Correct kernels of operators that decay and add, in many orders of summation.

Called as ``f(query, key, value, ..., scale=None, initial_state=None)`` on NumPy arrays
``(B, H, T, .)``, they return output and state.
"""

from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import Array, wide

__all__ = [
    "hgrn_by_doubling",
    "hgrn_by_tokens",
    "lightning_by_chunks",
    "lightning_by_tokens",
    "retention_as_toeplitz",
    "retention_by_tokens",
    "scaled",
    "ssd_by_segment_sums",
    "started",
]

Result = tuple[Array, Any]


def scaled(query: Array, scale: float | None) -> Array:
    """Return the query times its scale, ``K^-0.5`` if there is none."""
    query = wide(query)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    return query * np.asarray(factor, query.dtype)


def started(state: Array | None, value: Array, rows: int) -> Array:
    """Return an initial state, or zeros of so many rows."""
    if state is not None:
        return wide(state)
    return np.zeros((*value.shape[:-2], rows, value.shape[-1]), value.dtype)


def _retention_rates(heads: int) -> Array:
    return np.log1p(-(2.0 ** -(5.0 + np.arange(heads))))[:, None, None]


def _lightning_rates(heads: int) -> Array:
    return (-8.0 / max(heads, 1) * np.arange(heads))[:, None, None]


def _powers(rates: Array, ages: Array, dtype: Any) -> Array:
    """Return the decays of keys of some ages; of those in the future, zeros."""
    with np.errstate(over="ignore"):
        return np.where(ages >= 0, np.exp(rates * np.maximum(ages, 0)), 0).astype(dtype)


def retention_as_toeplitz(
    query: Array,
    key: Array,
    value: Array,
    *,
    scale: float | None = None,
    initial_state: Array | None = None,
) -> Result:
    """Weigh all pairs at once by a Toeplitz matrix of powers."""
    q, k, v = scaled(query, scale), wide(key), wide(value)
    state, steps = started(initial_state, v, k.shape[-1]), np.arange(v.shape[-2])
    rates = _retention_rates(v.shape[-3])
    weights = _powers(rates, steps[:, None] - steps, v.dtype)
    output = (weights * (q @ k.swapaxes(-1, -2))) @ v
    output = output + _powers(rates, 1 + steps[:, None], v.dtype) * (q @ state)
    kept = _powers(rates, steps[::-1, None], v.dtype) * k
    state = _powers(rates, np.array([[len(steps)]]), v.dtype) * state
    return output.astype(query.dtype), state + kept.swapaxes(-1, -2) @ v


def _by_tokens(rates: Array, q: Array, k: Array, v: Array, state: Array) -> Result:
    """Go token by token with one decay for each head."""
    decay, output = np.exp(rates).astype(v.dtype), np.zeros_like(v)
    for t in range(v.shape[-2]):
        state = decay * state + k[..., t, :, None] * v[..., t, None, :]
        output[..., t, :] = np.einsum("...k,...kv->...v", q[..., t, :], state)
    return output, state


def retention_by_tokens(
    query: Array,
    key: Array,
    value: Array,
    *,
    scale: float | None = None,
    initial_state: Array | None = None,
) -> Result:
    """Go token by token."""
    q, k, v = scaled(query, scale), wide(key), wide(value)
    state = started(initial_state, v, k.shape[-1])
    output, state = _by_tokens(_retention_rates(v.shape[-3]), q, k, v, state)
    return output.astype(query.dtype), state


def lightning_by_tokens(
    query: Array,
    key: Array,
    value: Array,
    *,
    scale: float | None = None,
    initial_state: Array | None = None,
) -> Result:
    """Go token by token."""
    q, k, v = scaled(query, scale), wide(key), wide(value)
    state = started(initial_state, v, k.shape[-1])
    output, state = _by_tokens(_lightning_rates(v.shape[-3]), q, k, v, state)
    return output.astype(query.dtype), state


def lightning_by_chunks(
    query: Array,
    key: Array,
    value: Array,
    *,
    scale: float | None = None,
    initial_state: Array | None = None,
) -> Result:
    """Take chunks of 48, with the decays of a chunk in its keys and queries."""
    q, k, v = scaled(query, scale), wide(key), wide(value)
    state, output = started(initial_state, v, k.shape[-1]), np.zeros_like(v)
    rates = _lightning_rates(v.shape[-3])
    for first in range(0, v.shape[-2], 48):
        at = (..., slice(first, first + 48), slice(None))
        steps = np.arange(v[at].shape[-2])
        weights = _powers(rates, steps[:, None] - steps, v.dtype)
        inside = (weights * (q[at] @ k[at].swapaxes(-1, -2))) @ v[at]
        before = _powers(rates, 1 + steps[:, None], v.dtype) * q[at]
        output[at] = inside + before @ state
        kept = _powers(rates, steps[::-1, None], v.dtype) * k[at]
        state = _powers(rates, np.array([[len(steps)]]), v.dtype) * state
        state = state + kept.swapaxes(-1, -2) @ v[at]
    return output.astype(query.dtype), state


def _segment_sums(g: Array) -> Array:
    """Return the sum of ``g`` from each token to each later one; -inf to earlier ones.

    Each is a cumulative sum of its own, from zero on: none is a difference.
    """
    length = g.shape[-1]
    repeated = np.repeat(g[..., None], length, axis=-1)
    mask = np.tri(length, k=-1, dtype=bool)
    sums = np.cumsum(np.where(mask, repeated, 0), axis=-2)
    return np.where(np.tri(length, dtype=bool), sums, -np.inf)


def ssd_by_segment_sums(
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None = None,
    *,
    scale: float | None = None,
    initial_state: Array | None = None,
) -> Result:
    """Form the states of all chunks of 20 first, then combine them in one product."""
    q, k, v = scaled(query, scale), wide(key), wide(value)
    g = np.zeros(v.shape[:-1], v.dtype) if log_decay is None else wide(log_decay)
    state, chunk = started(initial_state, v, k.shape[-1]), 20
    edges = [slice(i, i + chunk) for i in range(0, v.shape[-2], chunk)]
    sums = [_segment_sums(g[..., at]) for at in edges]
    own = [
        (np.exp(total[..., -1, :, None]) * k[..., at, :]).swapaxes(-1, -2)
        @ v[..., at, :]
        for total, at in zip(sums, edges, strict=True)
    ]
    nothing = np.zeros((*g.shape[:-1], 1), g.dtype)
    totals = [nothing, *(g[..., at].sum(-1, keepdims=True) for at in edges)]
    between = np.exp(_segment_sums(np.concatenate(totals, axis=-1))).astype(v.dtype)
    states = np.stack([state, *own], axis=-3)
    states = np.einsum("...zc,...ckv->...zkv", between, states)
    output = np.zeros_like(v)
    for i, (total, at) in enumerate(zip(sums, edges, strict=True)):
        qc, since = q[..., at, :], np.exp(np.cumsum(g[..., at], axis=-1))[..., None]
        inside = (np.exp(total) * (qc @ k[..., at, :].swapaxes(-1, -2))) @ v[..., at, :]
        output[..., at, :] = inside + (since * qc) @ states[..., i, :, :]
    return output.astype(query.dtype), states[..., -1, :, :]


def _open(log_decay: Array | None, x: Array) -> Array:
    return np.ones_like(x) if log_decay is None else np.exp(wide(log_decay))


def hgrn_by_tokens(
    value: Array,
    log_decay: Array | None = None,
    *,
    initial_state: Array | None = None,
) -> Result:
    """Go token by token."""
    x = wide(value)
    state, decay, output = started(initial_state, x, 1), _open(log_decay, x), x.copy()
    for t in range(x.shape[-2]):
        state = decay[..., t : t + 1, :] * state + x[..., t : t + 1, :]
        output[..., t : t + 1, :] = state
    return output.astype(value.dtype), state


def hgrn_by_doubling(
    value: Array,
    log_decay: Array | None = None,
    *,
    initial_state: Array | None = None,
) -> Result:
    """Compose the maps ``h -> a h + b`` of all tokens, doubling the reach each time."""
    x = wide(value)
    state, decay = started(initial_state, x, 1), _open(log_decay, x)
    reach = 1
    while reach < x.shape[-2]:
        x_before, decay_before = x[..., :-reach, :], decay[..., :-reach, :]
        later = decay[..., reach:, :] * x_before + x[..., reach:, :]
        both = decay[..., reach:, :] * decay_before
        x = np.concatenate([x[..., :reach, :], later], axis=-2)
        decay = np.concatenate([decay[..., :reach, :], both], axis=-2)
        reach *= 2
    h = decay * state + x
    return h.astype(value.dtype), h[..., -1:, :] if h.shape[-2] else state
