"""Correct kernels of the delta rule with momentum: by tokens, or a system of all.

Called as ``f(query, key, value, log_decay=None, momentum_log_decay=None, beta=None,
momentum_beta=None, scale=None, initial_state=None)`` on NumPy arrays ``(B, H, T, .)``,
they return output and both memories, one above the other.
"""

from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import Array, Kernel, forward_substitution, wide
from linkern.testing.kernels.correct.decays import scaled, started

__all__ = ["by_tokens", "in_pairs"]


def _gate(gate: Array | None, v: Array, neutral: float) -> Array:
    if gate is None:
        return np.full(v.shape[:-1], neutral, v.dtype)
    return wide(gate)


def by_tokens(*, undecayed: bool = False, late: bool = False) -> Kernel:
    """Return a kernel that goes token by token.

    Parameters
    ----------
    undecayed : bool
        Whether what is erased is read before the memory decays.
    late : bool
        Whether the momentum decays after it has taken a correction, not before.
    """

    def kernel(
        query: Array,
        key: Array,
        value: Array,
        log_decay: Array | None = None,
        momentum_log_decay: Array | None = None,
        beta: Array | None = None,
        momentum_beta: Array | None = None,
        *,
        scale: float | None = None,
        initial_state: Any = None,
    ) -> tuple[Array, Array]:
        q, k, v = scaled(query, scale), wide(key), wide(value)
        size, output = k.shape[-1], np.zeros_like(v)
        both = started(initial_state, v, 2 * size)
        memory, momentum = both[..., :size, :], both[..., size:, :]
        keep, hold = (
            np.exp(_gate(g, v, 0))[..., None] for g in (log_decay, momentum_log_decay)
        )
        share, taken = (_gate(b, v, 1)[..., None] for b in (beta, momentum_beta))
        for t in range(v.shape[-2]):
            row, before = k[..., t, :], memory
            memory = keep[..., t, :, None] * memory
            read = before if undecayed else memory
            held = np.einsum("...k,...kv->...v", row, read)
            new = taken[..., t, :] * (v[..., t, :] - held)
            left, written = hold[..., t, :, None], row[..., :, None] * new[..., None, :]
            momentum = left * momentum + (left * written if late else written)
            memory = memory + share[..., t, :, None] * momentum
            output[..., t, :] = np.einsum("...k,...kv->...v", q[..., t, :], memory)
        return output.astype(query.dtype), np.concatenate([memory, momentum], axis=-2)

    return kernel


def _between(g: Array) -> Array:
    """Return the decays ``(..., t, s)`` after s and up to t; of later s, 0.

    Each is a sum from zero on: none is a difference.
    """
    length = g.shape[-1]
    steps = np.where(np.tri(length, k=-1, dtype=bool), g[..., :, None], 0)
    seen = np.tri(length, dtype=bool)
    return np.where(seen, np.exp(np.cumsum(steps, axis=-2)), 0)


def in_pairs(
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None = None,
    momentum_log_decay: Array | None = None,
    beta: Array | None = None,
    momentum_beta: Array | None = None,
    *,
    scale: float | None = None,
    initial_state: Any = None,
) -> tuple[Array, Array]:
    """Weigh all pairs of tokens, and solve one system for what all of them write."""
    q, k, v = scaled(query, scale), wide(key), wide(value)
    length, size = k.shape[-2:]
    both = started(initial_state, v, 2 * size)
    if not length:
        return v.astype(query.dtype), both
    memory, momentum = both[..., :size, :], both[..., size:, :]
    g, h = _gate(log_decay, v, 0), _gate(momentum_log_decay, v, 0)
    share = _gate(beta, v, 1)[..., None]
    taken = _gate(momentum_beta, v, 1)[..., None]
    keep, hold = _between(g), _between(h)
    kept, left = (np.exp(np.cumsum(x, axis=-1))[..., None] for x in (g, h))
    weights, gained = keep @ (share * hold), keep @ (share * left)
    # What the token before has left, once more decayed.
    decay = np.exp(g)[..., None]
    seen, met = (decay * np.roll(x, 1, axis=-2) for x in (weights, gained))
    seen[..., 0, :], met[..., 0, :] = 0, 0
    pairs = k @ k.swapaxes(-1, -2)
    held = kept * (k @ memory) + met * (k @ momentum)
    new = forward_substitution(-taken * seen * pairs, taken * (v - held))
    output = (weights * (q @ k.swapaxes(-1, -2))) @ new
    output = output + kept * (q @ memory) + gained * (q @ momentum)
    last = (..., slice(-1, None), slice(None))
    written, rest = (
        (x[last].swapaxes(-1, -2) * k).swapaxes(-1, -2) @ new for x in (weights, hold)
    )
    memory = kept[last] * memory + gained[last] * momentum + written
    momentum = left[last] * momentum + rest
    return output.astype(query.dtype), np.concatenate([memory, momentum], axis=-2)
