"""Drawing arrays token by token, so that a shorter sequence holds the first tokens."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["per_token", "real_values", "uniform"]


def real_values(
    shape: tuple[int, ...], values: str, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Draw values ``(..., H, T, V)`` of a kind.

    Kinds: ``uniform``; ``positive`` and far from zero; ``constant`` per channel;
    ``normal``; ``alternating`` in sign; ``outlier``, one channel a thousand times as
    large; ``gaps``, tokens of zeros; ``sorted``, the least first; ``alike``, all heads
    but the last equal.
    """
    if values == "uniform":
        return uniform(rng, shape, 0, 1)
    if values == "positive":
        return uniform(rng, shape, 0.5, 1.5)
    if values == "constant":
        # Whole numbers: exact in every dtype, so that the hull is what was passed.
        whole = rng.integers(1, 8, (*shape[:-2], 1, shape[-1]))
        return np.broadcast_to(whole, shape).astype(np.float64)
    v = per_token(rng, shape, lambda r, s: r.normal(size=s))
    if values == "alternating":
        v = abs(v) * np.where(np.arange(shape[-2]) % 2, -1.0, 1.0)[:, None]
    elif values == "outlier":
        v[..., rng.integers(shape[-1])] *= 1000
    elif values == "gaps":
        v *= per_token(rng, (*shape[:-1], 1), lambda r, s: r.random(s) < 0.6)
    elif values == "sorted":
        # Running sums: a longer sequence begins like a shorter one.
        v = np.cumsum(abs(v), axis=-2) / 8
    elif values == "alike":
        v[..., :-1, :, :] = v[..., :1, :, :]
    return v


def uniform(
    rng: np.random.Generator, shape: tuple[int, ...], low: float, high: float
) -> NDArray[np.float64]:
    """Draw numbers between `low` and `high`."""
    return per_token(rng, shape, lambda r, s: r.uniform(low, high, s))


def per_token(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    sample: Callable[[np.random.Generator, tuple[int, ...]], NDArray[Any]],
) -> NDArray[Any]:
    """Draw an array ``(..., T, D)`` token by token, from a generator of its own."""
    first = (shape[-2], *shape[:-2], shape[-1])
    return np.moveaxis(sample(rng.spawn(1)[0], first), 0, -2).copy()
