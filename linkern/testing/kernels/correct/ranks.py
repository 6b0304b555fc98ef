"""Correct kernels of Mamba-3 with several inputs and outputs: by tokens, and by pairs.

Called as ``f(query, key, value, value_mix, output_mix, angle, dt, log_decay=None,
trapezoid=None, scale=None, initial_state=None)`` on NumPy arrays ``(B, H, T, .)``, they
return output and ``(memory, carried)``: angles, the last rotated keys and the last
value in one vector.
"""

from collections.abc import Callable
from math import pi
from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import Array, Kernel, wide
from linkern.testing.kernels.correct.trapezoidal import interleaved

__all__ = ["by_pairs", "by_tokens", "read_all", "side_by_side"]

Result = tuple[Array, Any]
# From queries, the memory before a token, and its writes, to the outputs of its ranks.
Read = Callable[[Array, Array, Array], Array]


def side_by_side(x: Array, rank: int) -> Array:
    """Return the vectors ``(..., R, N)`` that are one after the other."""
    return x.reshape(*x.shape[:-1], rank, x.shape[-1] // rank)


def read_all(query: Array, memory: Array, writes: Array) -> Array:
    """Return what queries ``(..., R, N)`` read after all writes ``(..., R, N, V)``."""
    return query @ (memory + writes.sum(axis=-3))


def _opened(
    state: Any, angle: Array, key: Array, value: Array, rank: int
) -> tuple[Array, Array, Array, Array]:
    """Return the memory, and what the first token meets beside it."""
    pairs, keys = angle.shape[-1], key.shape[-1]
    lead, size = value.shape[:-2], pairs + keys + value.shape[-1]
    if state is None:
        memory = np.zeros((*lead, keys // rank, value.shape[-1]))
        state = memory, np.zeros((*lead, size))
    memory, carried = (wide(x).astype(value.dtype) for x in state)
    turn, key_before, value_before = np.split(carried, [pairs, pairs + keys], -1)
    return memory, turn, key_before, value_before


def _weights(
    value: Array, dt: Array, log_decay: Array | None, trapezoid: Array | None
) -> tuple[Array, Array, Array]:
    """Return log-decays, and the weights of the token before and of this one."""
    step = wide(dt).astype(value.dtype)
    share = np.ones_like(step) if trapezoid is None else wide(trapezoid)
    g = np.zeros_like(step) if log_decay is None else wide(log_decay)
    return g, (1 - share) * step * np.exp(g), share * step


def by_tokens(
    *,
    apart: Callable[[Array, int], Array] = side_by_side,
    decays: Callable[[int], int] = lambda _: 1,
    read: Read = read_all,
    value_ranks: Callable[[Array], Array] = lambda mix: mix,
    keeps: Callable[[Array, Array], Array] = lambda value, _: value,
) -> Kernel:
    """Return a kernel that goes token by token.

    Parameters
    ----------
    apart : callable
        Takes the channels of all ranks apart.
    decays : callable
        How often a token decays the memory, by the rank.
    read : callable
        As `read_all`.
    value_ranks : callable
        Changes the mix of the values.
    keeps : callable
        The value that the state keeps, from the last one and the mix.
    """

    def kernel(
        query: Array,
        key: Array,
        value: Array,
        value_mix: Array,
        output_mix: Array,
        angle: Array,
        dt: Array,
        log_decay: Array | None = None,
        trapezoid: Array | None = None,
        *,
        scale: float | None = None,
        initial_state: Any = None,
    ) -> Result:
        v, rank = wide(value), value_mix.shape[-2]
        mix, out = value_ranks(wide(value_mix)), wide(output_mix)
        q, k = (apart(wide(x), rank) for x in (query, key))
        q = q if scale is None else q * np.asarray(scale, q.dtype)
        turns = pi * np.tanh(wide(angle)) * wide(dt)[..., None]
        memory, turn, before, x_before = _opened(initial_state, turns, key, v, rank)
        before = side_by_side(before, rank)
        g, earlier, now = _weights(v, dt, log_decay, trapezoid)
        y = np.zeros_like(v)
        for t in range(v.shape[-2]):
            turn = turn + turns[..., t, :]
            turn = turn - 2 * pi * np.floor(turn / (2 * pi))
            q_t, k_t = (
                interleaved(x[..., t, :, :], turn[..., None, :]) for x in (q, k)
            )
            decay = np.exp(g[..., t] * decays(rank))[..., None, None]
            of_before = earlier[..., t, None, None] * before
            of_itself = now[..., t, None, None] * k_t
            writes = _outer(of_before, mix * x_before[..., None, :])
            writes = writes + _outer(of_itself, mix * v[..., t, None, :])
            o = read(q_t, decay * memory, writes)
            memory = decay * memory + writes.sum(axis=-3)
            y[..., t, :] = (out * o).sum(axis=-2)
            before, x_before = k_t, v[..., t, :]
        flat = before.reshape(*before.shape[:-2], -1)
        carried = [turn, flat, keeps(x_before, mix)]
        return y.astype(query.dtype), (memory, np.concatenate(carried, axis=-1))

    return kernel


def _outer(keys: Array, values: Array) -> Array:
    """Return the write of each rank."""
    return keys[..., :, None] * values[..., None, :]


def by_pairs(
    query: Array,
    key: Array,
    value: Array,
    value_mix: Array,
    output_mix: Array,
    angle: Array,
    dt: Array,
    log_decay: Array | None = None,
    trapezoid: Array | None = None,
    *,
    scale: float | None = None,
    initial_state: Any = None,
) -> Result:
    """Weigh all pairs of ranks of all pairs of tokens at once."""
    v, mix, out = (wide(x) for x in (value, value_mix, output_mix))
    length, rank = v.shape[-2], mix.shape[-2]
    turns = pi * np.tanh(wide(angle)) * wide(dt)[..., None]
    memory, turn, before, x_before = _opened(initial_state, turns, key, v, rank)
    if not length:
        carried = np.concatenate([turn, before, x_before], axis=-1)
        return v.astype(query.dtype), (memory, carried)
    turn = turn[..., None, :] + np.cumsum(turns, axis=-2)
    turn = turn - 2 * pi * np.floor(turn / (2 * pi))
    q, k = (
        interleaved(side_by_side(wide(x), rank), turn[..., None, :])
        for x in (query, key)
    )
    q = q if scale is None else q * np.asarray(scale, q.dtype)
    before = side_by_side(before, rank)[..., None, :, :]
    k_before = np.concatenate([before, k[..., :-1, :, :]], axis=-3)
    v_before = np.concatenate([x_before[..., None, :], v[..., :-1, :]], axis=-2)
    g, earlier, now = _weights(v, dt, log_decay, trapezoid)
    # Sums of gates between two tokens, each from zero on: none is a difference.
    between = np.repeat(g[..., None], length, axis=-1)
    between = np.cumsum(np.where(np.tri(length, k=-1, dtype=bool), between, 0), -2)
    seen = np.tri(length, dtype=bool)
    decays = np.where(seen, np.exp(np.where(seen, between, 0)), 0)
    since = np.exp(np.cumsum(g, axis=-1))
    o = since[..., None, None] * (q @ memory[..., None, :, :])
    memory = since[..., -1, None, None] * memory
    for weight, keys, values in ((earlier, k_before, v_before), (now, k, v)):
        ranks = mix[..., None, :, :] * values[..., :, None, :]
        scores = np.einsum("...trn,...jsn->...tjrs", q, keys)
        scores = scores * (decays * weight[..., None, :])[..., None, None]
        o = o + np.einsum("...tjrs,...jsv->...trv", scores, ranks)
        kept = (decays[..., -1, :] * weight)[..., None, None] * keys
        memory = memory + np.einsum("...jsn,...jsv->...nv", kept, ranks)
    y = (out[..., None, :, :] * o).sum(axis=-2)
    last = turn[..., -1, :], k[..., -1, :, :].reshape(*v.shape[:-2], -1), v[..., -1, :]
    return y.astype(query.dtype), (memory, np.concatenate(last, axis=-1))
