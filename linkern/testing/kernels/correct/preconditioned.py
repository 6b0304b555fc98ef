"""Correct kernels of the preconditioned delta rules: by tokens, or a system of all.

Called as ``f(query, key, value, log_decay=None, beta=None, ..., scale=None,
initial_state=None)`` on NumPy arrays ``(B, H, T, .)``, they return output and
``(memory, sums)``. Log-decays are one for each token, or one for each channel.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import Array, Kernel, forward_substitution, wide
from linkern.testing.kernels.correct.decays import scaled, started

__all__ = ["OPERATORS", "by_tokens", "in_pairs", "squash"]

OPERATORS = ("preconditioned_gated_delta_rule", "preconditioned_kda")
Result = tuple[Array, Any]
# Sums of squares, center and range to the factor of each channel.
Factor = Callable[[Array, Array, Array], Array]


def squash(sums: Array, center: Array, log_range: Array) -> Array:
    """Return ``x^(-r / (1 + |r|))``, ``r`` the distance of a logarithm to its center.

    The sums are never negative, so the logarithm is finite.
    """
    r = np.log(sums + np.asarray(1e-6, sums.dtype)) - center
    return np.exp(-log_range * (r / (1 + abs(r))))


def _gate(gate: Array | None, v: Array, neutral: float) -> Array:
    if gate is None:
        return np.full(v.shape[:-1], neutral, v.dtype)
    return wide(gate)


def _of_head(x: Array | None, v: Array, default: float) -> Array:
    """Return a number of each head beside channels."""
    if x is None:
        return np.asarray(default, v.dtype)
    return wide(x)[..., None]


def _decay(log_decay: Array | None, k: Array) -> Array:
    """Return log-decays of each channel, or with one channel for all."""
    if log_decay is None:
        return np.zeros((*k.shape[:-1], 1), k.dtype)
    g = wide(log_decay)
    return g if g.ndim == k.ndim else g[..., None]


def _begun(state: Any, k: Array, v: Array) -> tuple[Array, Array]:
    if state is not None:
        return wide(state[0]), wide(state[1])
    sums = np.zeros((*v.shape[:-2], k.shape[-1]), v.dtype)
    return started(None, v, k.shape[-1]), sums


def by_tokens(
    factor: Factor = squash, *, late: bool = False, erase_written: bool = False
) -> Kernel:
    """Return a kernel that goes token by token.

    Parameters
    ----------
    factor : callable
        Of sums, center and range.
    late : bool
        Whether a token is scaled by the sums before it.
    erase_written : bool
        Whether what is erased is read along the key that is written.
    """

    def kernel(
        query: Array,
        key: Array,
        value: Array,
        log_decay: Array | None = None,
        beta: Array | None = None,
        preconditioner_log_decay: Array | None = None,
        preconditioner_beta: Array | None = None,
        center: Array | None = None,
        log_range: Array | None = None,
        *,
        scale: float | None = None,
        initial_state: Any = None,
    ) -> Result:
        q, k, v = scaled(query, scale), wide(key), wide(value)
        (memory, sums), output = _begun(initial_state, k, v), np.zeros_like(v)
        rate, weight = _gate(beta, v, 1), _gate(preconditioner_beta, v, 1)
        keep = np.exp(_gate(preconditioner_log_decay, v, 0))
        decay = np.exp(_decay(log_decay, k))
        middle, reach = _of_head(center, v, -0.2), _of_head(log_range, v, np.log(1.5))
        for t in range(v.shape[-2]):
            row, before = k[..., t, :], sums
            sums = keep[..., t, None] * sums + weight[..., t, None] * (row * row)
            written = row * factor(before if late else sums, middle, reach)
            memory = decay[..., t, :, None] * memory
            along = written if erase_written else row
            held = np.einsum("...k,...kv->...v", along, memory)
            new = rate[..., t, None] * (v[..., t, :] - held)
            memory = memory + written[..., :, None] * new[..., None, :]
            output[..., t, :] = np.einsum("...k,...kv->...v", q[..., t, :], memory)
        return output.astype(query.dtype), (memory, sums)

    return kernel


def _between(g: Array) -> Array:
    """Return the decays ``(..., t, s, channel)`` after s and up to t; of later s, 0.

    Each is a sum from zero on: none is a difference.
    """
    length = g.shape[-2]
    later = np.tri(length, k=-1, dtype=bool)[..., None]
    steps = np.where(later, g[..., :, None, :], 0)
    seen = np.tri(length, dtype=bool)[..., None]
    return np.where(seen, np.exp(np.cumsum(steps, axis=-3)), 0)


def in_pairs(
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None = None,
    beta: Array | None = None,
    preconditioner_log_decay: Array | None = None,
    preconditioner_beta: Array | None = None,
    center: Array | None = None,
    log_range: Array | None = None,
    *,
    scale: float | None = None,
    initial_state: Any = None,
) -> Result:
    """Sum squares over all pairs, and solve one system for what all tokens write."""
    q, k, v = scaled(query, scale), wide(key), wide(value)
    memory, sums = _begun(initial_state, k, v)
    if not v.shape[-2]:
        return v.astype(query.dtype), (memory, sums)
    weight = _gate(preconditioner_beta, v, 1)[..., None]
    g = _gate(preconditioner_log_decay, v, 0)[..., None]
    totals = _between(g)[..., 0] @ (weight * k * k)
    totals = totals + np.exp(np.cumsum(g, axis=-2)) * sums[..., None, :]
    middle, reach = (
        x[..., None] if x.ndim else x
        for x in (_of_head(center, v, -0.2), _of_head(log_range, v, np.log(1.5)))
    )
    written = k * squash(totals, middle, reach)
    rate, g = _gate(beta, v, 1)[..., None], _decay(log_decay, k)
    decays, since = _between(g), np.exp(np.cumsum(g, axis=-2))

    def met(x: Array) -> Array:
        return (x[..., :, None, :] * decays * written[..., None, :, :]).sum(-1)

    system = np.where(np.tri(v.shape[-2], k=-1, dtype=bool), -rate * met(k), 0)
    new = forward_substitution(system, rate * (v - (k * since) @ memory))
    output = met(q) @ new + (q * since) @ memory
    last = (decays[..., -1, :, :] * written).swapaxes(-1, -2) @ new
    memory = since[..., -1, :, None] * memory + last
    return output.astype(query.dtype), (memory, totals[..., -1, :])
