"""Correct kernels of power retention: even powers of scores under a gate.

Called as ``f(query, key, value, log_decay=None, scale=None, initial_state=None)`` on
NumPy arrays ``(B, H, T, .)``, they return output and ``(memory, normalizer)``.
"""

from collections.abc import Callable
from itertools import combinations_with_replacement, permutations
from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import Array, Kernel, lower_triangle, wide
from linkern.testing.kernels.correct.decays import scaled

__all__ = ["by_tokens", "in_pairs", "products"]


def products(x: Array, degree: int, *, weighed: bool = True) -> Array:
    """Return the products of so many channels, each once, by how often it comes up."""
    chosen = combinations_with_replacement(range(x.shape[-1]), degree)
    columns = []
    for entries in chosen:
        orders = len({*permutations(entries)}) if weighed else 1
        column = np.asarray(orders**0.5, x.dtype) * x[..., entries[0]]
        for i in entries[1:]:
            column = column * x[..., i]
        columns.append(column)
    return np.stack(columns, axis=-1)


def _begun(state: Any, features: int, v: Array) -> tuple[Array, Array]:
    if state is not None:
        return wide(state[0]), wide(state[1])
    lead = v.shape[:-2]
    return np.zeros((*lead, features, v.shape[-1]), v.dtype), np.zeros(
        (*lead, features), v.dtype
    )


def _gates(log_decay: Array | None, v: Array) -> Array:
    return np.zeros(v.shape[:-1], v.dtype) if log_decay is None else wide(log_decay)


def by_tokens(
    features: Callable[[Array], Array], *, decays_normalizer: bool = True
) -> Kernel:
    """Return a kernel that goes token by token, with features of its own."""

    def kernel(
        query: Array,
        key: Array,
        value: Array,
        log_decay: Array | None = None,
        *,
        scale: float | None = None,
        initial_state: Any = None,
    ) -> Any:
        q, k, v = features(scaled(query, scale)), features(wide(key)), wide(value)
        memory, z = _begun(initial_state, k.shape[-1], v)
        gate, output = np.exp(_gates(log_decay, v))[..., None], np.zeros_like(v)
        for t in range(v.shape[-2]):
            memory = gate[..., t, :, None] * memory
            memory = memory + k[..., t, :, None] * v[..., t, None, :]
            z = (gate[..., t, :] * z if decays_normalizer else z) + k[..., t, :]
            above = np.einsum("...f,...fv->...v", q[..., t, :], memory)
            output[..., t, :] = above / (q[..., t, :] * z).sum(-1, keepdims=True)
        return output.astype(query.dtype), (memory, z)

    return kernel


def in_pairs(degree: int) -> Kernel:
    """Return a kernel of powers of scores, and of features of what was before."""

    def kernel(
        query: Array,
        key: Array,
        value: Array,
        log_decay: Array | None = None,
        *,
        scale: float | None = None,
        initial_state: Any = None,
    ) -> Any:
        q, k, v = scaled(query, scale), wide(key), wide(value)
        fq, fk = products(q, degree), products(k, degree)
        memory, z = _begun(initial_state, fk.shape[-1], v)
        g, length = _gates(log_decay, v), v.shape[-2]
        # Sums of gates between two tokens, each from zero on: none is a difference.
        between = np.repeat(g[..., None], length, axis=-1)
        between = np.cumsum(np.where(np.tri(length, k=-1, dtype=bool), between, 0), -2)
        scores = (q @ k.swapaxes(-1, -2)) ** degree
        weights = lower_triangle(np.exp(between) * scores)
        since = np.exp(np.cumsum(g, axis=-1))[..., None]
        above = weights @ v + since * (fq @ memory)
        below = weights.sum(-1, keepdims=True) + since * (fq @ z[..., None])
        if length:
            kept = np.exp(between[..., -1, :])[..., None] * fk
            last = since[..., -1, :, None]
            memory = last * memory + kept.swapaxes(-1, -2) @ v
            z = last[..., 0] * z + kept.sum(-2)
        return (above / below).astype(query.dtype), (memory, z)

    return kernel
