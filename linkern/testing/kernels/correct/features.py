"""Correct kernels of weights that are polynomials of scores: based and rebased.

Called as ``f(query, key, value, scale=None, initial_state=None)`` on NumPy arrays
``(B, H, T, .)``, they return output and ``(memory, normalizer)``.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import Array, Kernel, lower_triangle, wide
from linkern.testing.kernels.correct.decays import scaled

__all__ = ["by_chunks", "squares", "taylor"]

Result = tuple[Array, Any]


def squares(x: Array) -> Array:
    """Return the products of all pairs of channels."""
    outer = x[..., :, None] * x[..., None, :]
    return outer.reshape(*x.shape[:-1], x.shape[-1] ** 2)


def taylor(x: Array) -> Array:
    """Return one, the channels, and their products, of which scores are polynomials."""
    half = np.asarray(0.5**0.5, x.dtype)
    return np.concatenate([np.ones_like(x[..., :1]), x, half * squares(x)], axis=-1)


def _square(x: Array) -> Array:
    return x * x


def _polynomial(x: Array) -> Array:
    return 1 + x * (1 + x / 2)


_SCORES: dict[Callable[[Array], Array], Callable[[Array], Array]] = {
    squares: _square,
    taylor: _polynomial,
}


def by_chunks(features: Callable[[Array], Array], chunk: int) -> Kernel:
    """Return a kernel that forms the scores of a chunk, and keeps features between."""

    def kernel(
        query: Array,
        key: Array,
        value: Array,
        *,
        scale: float | None = None,
        initial_state: Any = None,
    ) -> Result:
        q, k, v = scaled(query, scale), wide(key), wide(value)
        fq, fk = features(q), features(k)
        memory = np.zeros((*v.shape[:-2], fk.shape[-1], v.shape[-1]), v.dtype)
        z = np.zeros((*v.shape[:-2], fk.shape[-1]), v.dtype)
        if initial_state is not None:
            memory, z = (wide(x) for x in initial_state)
        output = np.zeros_like(v)
        for first in range(0, v.shape[-2], chunk):
            at = (..., slice(first, first + chunk), slice(None))
            scores = q[at] @ k[at].swapaxes(-1, -2)
            weights = lower_triangle(_SCORES[features](scores))
            numerator = weights @ v[at] + fq[at] @ memory
            denominator = weights.sum(-1) + (fq[at] @ z[..., None])[..., 0]
            output[at] = numerator / denominator[..., None]
            memory = memory + fk[at].swapaxes(-1, -2) @ v[at]
            z = z + fk[at].sum(-2)
        return output.astype(query.dtype), (memory, z)

    return kernel
