"""Correct kernels of Mamba-3: token by token, and by pairs of tokens.

Called as ``f(query, key, value, angle, dt, log_decay=None, trapezoid=None, scale=None,
initial_state=None)`` on NumPy arrays ``(B, H, T, .)``, they return output and
``(memory, carried)``: angles, the last rotated key and the last value in one vector.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import pi
from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import Array, Kernel, wide

__all__ = ["Token", "by_pairs", "by_tokens", "interleaved"]

Result = tuple[Array, Any]
Rotate = Callable[[Array, Array], Array]


@dataclass(frozen=True)
class Token:
    """The gates of one token, ``(..., 1)`` each.

    Parameters
    ----------
    decay, step, share : array
        ``e^g``, ``dt``, and the share of the step that the token itself writes.
    step_before : array
        ``dt`` of the token before; that of the first token for itself.
    """

    decay: Array
    step: Array
    share: Array
    step_before: Array

    @property
    def earlier(self) -> Array:
        """The weight of the write for the token before."""
        return (1 - self.share) * self.step * self.decay


def interleaved(x: Array, angle: Array) -> Array:
    """Rotate channels 0 and 1 by the first angle, 2 and 3 by the second."""
    turned = x.copy()
    size = 2 * angle.shape[-1]
    even, odd = x[..., 0:size:2], x[..., 1:size:2]
    turned[..., 0:size:2] = even * np.cos(angle) - odd * np.sin(angle)
    turned[..., 1:size:2] = odd * np.cos(angle) + even * np.sin(angle)
    return turned


def _scaled(query: Array, scale: float | None) -> Array:
    query = wide(query)
    return query if scale is None else query * np.asarray(scale, query.dtype)


def _gates(
    value: Array, dt: Array, log_decay: Array | None, trapezoid: Array | None
) -> tuple[Array, Array, Array]:
    """Return decays, steps and shares of all tokens."""
    whole = np.ones(value.shape[:-1], wide(value).dtype)
    decay = whole if log_decay is None else np.exp(wide(log_decay))
    share = whole if trapezoid is None else wide(trapezoid)
    return decay, wide(dt), share


def _begun(state: Any, angle: Array, k: Array, v: Array) -> tuple[Array, list[Array]]:
    """Return the memory, and what the first token meets beside it."""
    pairs, keys = angle.shape[-1], k.shape[-1]
    lead, size = v.shape[:-2], pairs + keys + v.shape[-1]
    if state is None:
        state = np.zeros((*lead, keys, v.shape[-1])), np.zeros((*lead, size))
    carried = wide(state[1]).astype(v.dtype)
    return wide(state[0]).astype(v.dtype), np.split(carried, [pairs, pairs + keys], -1)


def _on_circle(angle: Array) -> Array:
    return angle - 2 * pi * np.floor(angle / (2 * pi))


def by_tokens(
    earlier: Callable[[Token], Array] = lambda token: token.earlier,
    rotate: Rotate = interleaved,
    *,
    keeps_rotation: bool = True,
) -> Kernel:
    """Return a kernel that goes token by token, its angles on the circle."""

    def kernel(
        query: Array,
        key: Array,
        value: Array,
        angle: Array,
        dt: Array,
        log_decay: Array | None = None,
        trapezoid: Array | None = None,
        *,
        scale: float | None = None,
        initial_state: Any = None,
    ) -> Result:
        q, k, v = _scaled(query, scale), wide(key), wide(value)
        turns = pi * np.tanh(wide(angle)) * wide(dt)[..., None]
        gates = _gates(v, dt, log_decay, trapezoid)
        memory, (turn, key_before, value_before) = _begun(initial_state, turns, k, v)
        y = np.zeros_like(v)
        for t in range(v.shape[-2]):
            turn = _on_circle(turn + turns[..., t, :])
            decay, step, share = (x[..., t, None] for x in gates)
            token = Token(decay, step, share, gates[1][..., max(t - 1, 0), None])
            k_t, v_t = rotate(k[..., t, :], turn), v[..., t, :]
            first = (earlier(token) * key_before)[..., :, None]
            second = (share * step * k_t)[..., :, None]
            memory = decay[..., None] * memory + first * value_before[..., None, :]
            memory = memory + second * v_t[..., None, :]
            q_t = rotate(q[..., t, :], turn)
            y[..., t, :] = np.einsum("...k,...kv->...v", q_t, memory)
            key_before, value_before = k_t if keeps_rotation else k[..., t, :], v_t
        carried = np.concatenate([turn, key_before, value_before], axis=-1)
        return y.astype(query.dtype), (memory, carried)

    return kernel


def by_pairs(
    query: Array,
    key: Array,
    value: Array,
    angle: Array,
    dt: Array,
    log_decay: Array | None = None,
    trapezoid: Array | None = None,
    *,
    scale: float | None = None,
    initial_state: Any = None,
) -> Result:
    """Weigh all pairs at once, each token as two writes, its channels as complex."""
    q, k, v = _scaled(query, scale), wide(key), wide(value)
    turns = pi * np.tanh(wide(angle)) * wide(dt)[..., None]
    memory, (turn, key_before, value_before) = _begun(initial_state, turns, k, v)
    length = v.shape[-2]
    if not length:
        carried = np.concatenate([turn, key_before, value_before], axis=-1)
        return v.astype(query.dtype), (memory, carried)
    angles = _on_circle(turn[..., None, :] + np.cumsum(turns, axis=-2))
    q, k = _as_complex(q, angles), _as_complex(k, angles)
    _, step, share = _gates(v, dt, log_decay, trapezoid)
    g = np.zeros_like(step) if log_decay is None else wide(log_decay)
    # Sums of gates between two tokens, each from zero on: none is a difference.
    between = np.repeat(g[..., None], length, axis=-1)
    between = np.cumsum(np.where(np.tri(length, k=-1, dtype=bool), between, 0), -2)
    seen = np.tri(length, dtype=bool)
    decays = np.where(seen, np.exp(np.where(seen, between, 0)), 0)
    keys = np.concatenate([key_before[..., None, :], k], axis=-2)
    values = np.concatenate([value_before[..., None, :], v], axis=-2)
    weight = (1 - share) * step * np.exp(g)
    earlier = decays * weight[..., None, :] * (q @ keys[..., :-1, :].swapaxes(-1, -2))
    within = decays * (share * step)[..., None, :] * (q @ k.swapaxes(-1, -2))
    since = np.exp(np.cumsum(g, axis=-1))[..., None]
    y = earlier @ values[..., :-1, :] + within @ v + since * (q @ memory)
    kept = decays[..., -1, :, None]
    first = kept * weight[..., None] * keys[..., :-1, :]
    second = kept * (share * step)[..., None] * k
    memory = (
        since[..., -1, :, None] * memory + first.swapaxes(-1, -2) @ values[..., :-1, :]
    )
    memory = memory + second.swapaxes(-1, -2) @ v
    last = angles[..., -1, :], k[..., -1, :], v[..., -1, :]
    return y.astype(query.dtype), (memory, np.concatenate(last, axis=-1))


def _as_complex(x: Array, angle: Array) -> Array:
    """Rotate pairs of channels as complex numbers."""
    size = 2 * angle.shape[-1]
    pairs = (x[..., 0:size:2] + 1j * x[..., 1:size:2]) * np.exp(1j * angle)
    flat = np.stack([pairs.real, pairs.imag], axis=-1).reshape(*x.shape[:-1], size)
    return np.concatenate([flat.astype(x.dtype), x[..., size:]], axis=-1)
