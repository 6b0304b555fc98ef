"""Correct kernels of mesa, which solves a system of equations for each token.

Called as ``f(query, key, value, ..., scale=None, initial_state=None)`` on NumPy arrays
``(B, H, T, .)``, they return output and state: the matrix beside the memory of values.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import Array, Kernel, wide

__all__ = ["by_tokens", "mesa_by_cholesky", "mesa_by_solving"]

Result = tuple[Array, Any]


def _prepared(
    query: Array, key: Array, value: Array, scale: float | None, state: Array | None
) -> tuple[Array, Array, Array]:
    """Return scaled queries, keys with values beside them, and the state."""
    q, k, v = wide(query), wide(key), wide(value)
    rows = np.concatenate([k, v], axis=-1)
    if state is None:
        size = (*v.shape[:-2], k.shape[-1], rows.shape[-1])
        state = np.zeros(size, v.dtype)
    return q * np.asarray(1.0 if scale is None else scale, q.dtype), rows, wide(state)


def by_tokens(solve: Callable[[Array, Array], Array]) -> Kernel:
    """Return a kernel that solves for the query of each token, in turn."""

    def mesa(
        query: Array,
        key: Array,
        value: Array,
        log_decay: Array | None = None,
        beta: Array | None = None,
        ridge: Array | None = None,
        *,
        scale: float | None = None,
        initial_state: Array | None = None,
    ) -> Result:
        q, rows, state = _prepared(query, key, value, scale, initial_state)
        size = q.shape[-1]
        added = np.ones(size, q.dtype) if ridge is None else wide(ridge)
        diagonal = added[..., :, None] * np.eye(size, dtype=q.dtype)
        output = np.zeros((*q.shape[:-1], value.shape[-1]), q.dtype)
        for t in range(q.shape[-2]):
            if log_decay is not None:
                state = np.exp(wide(log_decay)[..., t, None, None]) * state
            rate = 1 if beta is None else wide(beta)[..., t, None, None]
            state = state + rate * rows[..., t, :size, None] * rows[..., t, None, :]
            x = solve(state[..., :size] + diagonal, q[..., t, :, None])
            output[..., t, :] = (np.swapaxes(x, -1, -2) @ state[..., size:])[..., 0, :]
        return output.astype(query.dtype), state

    return mesa


mesa_by_solving = by_tokens(np.linalg.solve)


def mesa_by_cholesky(
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None = None,
    beta: Array | None = None,
    ridge: Array | None = None,
    *,
    scale: float | None = None,
    initial_state: Array | None = None,
) -> Result:
    """Sum all states first, in float64, then solve all systems by their factors."""
    q, rows, state = (
        x.astype(np.float64) for x in _prepared(query, key, value, scale, initial_state)
    )
    size, length = q.shape[-1], q.shape[-2]
    factors = np.ones((*q.shape[:-1], 1, 1))
    if log_decay is not None:
        factors = np.exp(log_decay.astype(np.float64))[..., None, None]
    rates = 1.0 if beta is None else beta.astype(np.float64)[..., None, None]
    states = rates * rows[..., :size, None] * rows[..., None, :]
    for t in range(length):
        before = states[..., t - 1, :, :] if t else state
        states[..., t, :, :] += factors[..., t, :, :] * before
    added = np.ones(size) if ridge is None else ridge.astype(np.float64)[..., None, :]
    matrices = states[..., :size] + added[..., :, None] * np.eye(size)
    lower = np.linalg.cholesky(matrices)
    x = np.linalg.solve(lower, q[..., None])
    x = np.linalg.solve(np.swapaxes(lower, -1, -2), x)
    output = np.einsum("...tkx,...tkv->...tv", x, states[..., size:])
    final = states[..., -1, :, :] if length else state
    dtype = np.result_type(query.dtype, np.float32)
    return output.astype(query.dtype), final.astype(dtype)
