"""Correct kernels of linear attention in many orders of summation.

All have ``elu(x) + 1`` and, but for two, are causal. They are called as
``f(query, key, value)`` on NumPy arrays ``(..., T, K)``.
"""

import numpy as np

from linkern.testing.kernels.assembly import (
    Array,
    Parts,
    assemble,
    elu_plus_one,
    lower_triangle,
    wide,
)

__all__ = [
    "backwards",
    "divides_first",
    "every_key",
    "every_key_online",
    "featured",
    "features_outside",
    "multiplies_by_reciprocal",
    "odd_then_even",
    "prefix_sums",
    "quadratic",
    "recurrent",
    "renormalises",
    "textbook_features",
    "tree_scan",
]


def featured(query: Array, key: Array, value: Array) -> tuple[Array, Array, Array]:
    """Return features of queries and keys, and values, in float32 or wider."""
    return elu_plus_one(wide(query)), elu_plus_one(wide(key)), wide(value)


def quadratic(query: Array, key: Array, value: Array) -> Array:
    """Form all scores at once."""
    q, k, v = featured(query, key, value)
    scores = lower_triangle(q @ k.swapaxes(-1, -2))
    return ((scores @ v) / scores.sum(-1, keepdims=True)).astype(query.dtype)


def recurrent(query: Array, key: Array, value: Array) -> Array:
    """Go token by token, with the normalizer as one more column of the values."""
    q, k, v = featured(query, key, value)
    v = np.concatenate([v, np.ones_like(v[..., :1])], axis=-1)
    memory = np.zeros((*k.shape[:-2], k.shape[-1], v.shape[-1]), v.dtype)
    read_out = np.empty_like(v)
    for i in range(q.shape[-2]):
        memory = memory + k[..., i, :, None] * v[..., i, None, :]
        read_out[..., i, :] = (q[..., i, None, :] @ memory)[..., 0, :]
    return (read_out[..., :-1] / read_out[..., -1:]).astype(query.dtype)


def backwards(query: Array, key: Array, value: Array) -> Array:
    """Sum the keys of each row from the last to the first."""
    q, k, v = featured(query, key, value)
    output, total = np.zeros_like(v), np.zeros_like(v[..., :1])
    # All rows at once: at every step each of them meets the key before the last one.
    for behind in range(q.shape[-2]):
        before = slice(0, q.shape[-2] - behind)
        weights = (q[..., behind:, :] * k[..., before, :]).sum(-1, keepdims=True)
        output[..., behind:, :] += weights * v[..., before, :]
        total[..., behind:, :] += weights
    return (output / total).astype(query.dtype)


def prefix_sums(query: Array, key: Array, value: Array) -> Array:
    """Materialise every state with a cumulative sum, then read."""
    q, k, v = featured(query, key, value)
    memory = np.cumsum(k[..., :, None] * v[..., None, :], axis=-3)
    z = np.cumsum(k, axis=-2)
    numerator = (q[..., None, :] @ memory)[..., 0, :]
    return (numerator / (q * z).sum(-1, keepdims=True)).astype(query.dtype)


def tree_scan(query: Array, key: Array, value: Array) -> Array:
    """Combine states in a tree, doubling the reach at each level."""
    q, k, v = featured(query, key, value)
    v = np.concatenate([v, np.ones_like(v[..., :1])], axis=-1)
    states = k[..., :, None] * v[..., None, :]
    reach = 1
    while reach < states.shape[-3]:
        later = states[..., reach:, :, :] + states[..., :-reach, :, :]
        states = np.concatenate([states[..., :reach, :, :], later], axis=-3)
        reach *= 2
    read_out = (q[..., None, :] @ states)[..., 0, :]
    return (read_out[..., :-1] / read_out[..., -1:]).astype(query.dtype)


def odd_then_even(query: Array, key: Array, value: Array) -> Array:
    """Sum odd and even keys separately, as split reductions do."""
    q, k, v = featured(query, key, value)
    scores = lower_triangle(q @ k.swapaxes(-1, -2))
    halves = [scores[..., i::2] @ v[..., i::2, :] for i in (1, 0)]
    weights = [scores[..., i::2].sum(-1, keepdims=True) for i in (1, 0)]
    return ((halves[0] + halves[1]) / (weights[0] + weights[1])).astype(query.dtype)


def divides_first(query: Array, key: Array, value: Array) -> Array:
    """Scale queries, normalise weights, then average values, as softmax code does."""
    q, k, v = featured(query, key, value)
    q = q * np.asarray(q.shape[-1] ** -0.5, q.dtype)
    scores = lower_triangle(q @ k.swapaxes(-1, -2))
    return ((scores / scores.sum(-1, keepdims=True)) @ v).astype(query.dtype)


def renormalises(query: Array, key: Array, value: Array) -> Array:
    """Keep every row normalised as chunks of keys come in, like online softmax."""
    q, k, v = featured(query, key, value)
    output = np.zeros((*q.shape[:-1], v.shape[-1]), v.dtype)
    total = np.zeros((*q.shape[:-1], 1), v.dtype)
    positions = np.arange(q.shape[-2])
    for first in range(0, k.shape[-2], 32):
        span, rows = slice(first, first + 32), np.s_[..., first:, :]
        seen = positions[first:, None] >= positions[span]
        weights = (q[rows] @ np.swapaxes(k[..., span, :], -1, -2)) * seen
        later = total[rows] + weights.sum(-1, keepdims=True)
        kept, new = total[rows] / later, weights / later
        output[rows] = output[rows] * kept + new @ v[..., span, :]
        total[rows] = later
    return output.astype(query.dtype)


def features_outside(query: Array, key: Array, value: Array) -> Array:
    """Loop over features; each adds its own scan over time."""
    q, k, v = featured(query, key, value)
    numerator = np.zeros((*q.shape[:-1], v.shape[-1]), v.dtype)
    denominator = np.zeros((*q.shape[:-1], 1), v.dtype)
    for feature in range(q.shape[-1]):
        one = slice(feature, feature + 1)
        numerator += q[..., one] * np.cumsum(k[..., one] * v, axis=-2)
        denominator += q[..., one] * np.cumsum(k[..., one], axis=-2)
    return (numerator / denominator).astype(query.dtype)


def multiplies_by_reciprocal(query: Array, key: Array, value: Array) -> Array:
    """Multiply by the reciprocal of the denominator, with one rounding more."""
    parts = Parts(chunk=64, divide=lambda n, d: n * (1 / d))
    return assemble(parts)(query, key, value)


def textbook_features(query: Array, key: Array, value: Array) -> Array:
    """Use ``elu(x) + 1`` as most code does: absolutely, not relatively, accurate."""

    def elu_and_one(x: Array) -> Array:
        elu: Array = np.where(x > 0, x, np.expm1(np.minimum(x, 0)))
        return elu + 1

    return assemble(Parts(chunk=32, features=elu_and_one))(query, key, value)


def every_key(query: Array, key: Array, value: Array) -> Array:
    """Sum all keys into one state, which every query reads."""
    q, k, v = featured(query, key, value)
    numerator = q @ (k.swapaxes(-1, -2) @ v)
    return (numerator / (q @ k.sum(-2)[..., None])).astype(query.dtype)


def every_key_online(query: Array, key: Array, value: Array) -> Array:
    """Average over the keys of one tile after the other, from the last to the first."""
    q, k, v = featured(query, key, value)
    output = np.zeros((*q.shape[:-1], v.shape[-1]), v.dtype)
    total = np.zeros((*q.shape[:-1], 1), v.dtype)
    for first in reversed(range(0, k.shape[-2], 10)):
        weights = q @ k[..., first : first + 10, :].swapaxes(-1, -2)
        later = total + weights.sum(-1, keepdims=True)
        new = (weights / later) @ v[..., first : first + 10, :]
        output, total = (total / later) * output + new, later
    return output.astype(query.dtype)
