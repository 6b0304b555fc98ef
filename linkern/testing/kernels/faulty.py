"""The kernel of ``linkern demo``: one fault, which a test of 64 tokens does not see."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["attention"]

Array = NDArray[Any]


def attention(query: Array, key: Array, value: Array, chunk: int = 64) -> Array:
    """Causal linear attention with elu(x) + 1 on arrays (batch, heads, time, dim)."""
    q, k = (np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in (query, key))
    batch, heads, length, key_dim = k.shape
    memory = np.zeros((batch, heads, key_dim, value.shape[-1]), k.dtype)
    normalizer = np.zeros((batch, heads, key_dim, 1), k.dtype)
    output = np.empty_like(value)
    for first in range(0, length, chunk):
        last = min(first + chunk, length) - 1
        now = np.s_[:, :, first : last + 1]
        scores = np.tril(q[now] @ k[now].swapaxes(-1, -2))
        numerator = q[now] @ memory + scores @ value[now]
        denominator = q[now] @ normalizer + scores.sum(-1, keepdims=True)
        output[now] = numerator / denominator
        seen = np.s_[:, :, first:last]
        memory += k[seen].swapaxes(-1, -2) @ value[seen]
        normalizer += k[seen].sum(-2)[..., None]
    return output
