"""Correct kernels in many orders of summation.

All are causal linear attention with ``elu(x) + 1``, called as ``f(query, key, value)``
on NumPy arrays ``(..., T, K)``. A correct kernel that fails a check is a false alarm.
"""

from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import (
    Kernel,
    Parts,
    assemble,
    elu_plus_one,
    lower_triangle,
    stateful,
)

__all__ = [
    "CORRECT",
    "Kernel",
    "Parts",
    "assemble",
    "elu_plus_one",
    "quadratic",
    "wide",
]

Array = Any


def wide(*arrays: Array) -> list[Array]:
    """Return arrays in float32 or wider."""
    return [x.astype(np.result_type(x.dtype, np.float32)) for x in arrays]


def quadratic(query: Array, key: Array, value: Array) -> Array:
    """All scores at once."""
    q, k, v = wide(query, key, value)
    scores = lower_triangle(elu_plus_one(q) @ elu_plus_one(k).swapaxes(-1, -2))
    return ((scores @ v) / scores.sum(-1, keepdims=True)).astype(query.dtype)


def recurrent(query: Array, key: Array, value: Array) -> Array:
    """One token after the other, the normalizer as one more column."""
    q, k, v = wide(query, key, value)
    q, k = elu_plus_one(q), elu_plus_one(k)
    v = np.concatenate([v, np.ones_like(v[..., :1])], axis=-1)
    memory = np.zeros((*k.shape[:-2], k.shape[-1], v.shape[-1]), v.dtype)
    read_out = np.empty_like(v)
    for i in range(q.shape[-2]):
        memory = memory + k[..., i, :, None] * v[..., i, None, :]
        read_out[..., i, :] = (q[..., i, None, :] @ memory)[..., 0, :]
    return (read_out[..., :-1] / read_out[..., -1:]).astype(query.dtype)


def backwards(query: Array, key: Array, value: Array) -> Array:
    """Sum the keys of each row from the last to the first."""
    q, k, v = wide(query, key, value)
    q, k = elu_plus_one(q), elu_plus_one(k)
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
    q, k, v = wide(query, key, value)
    q, k = elu_plus_one(q), elu_plus_one(k)
    memory = np.cumsum(k[..., :, None] * v[..., None, :], axis=-3)
    z = np.cumsum(k, axis=-2)
    numerator = (q[..., None, :] @ memory)[..., 0, :]
    return (numerator / (q * z).sum(-1, keepdims=True)).astype(query.dtype)


def tree_scan(query: Array, key: Array, value: Array) -> Array:
    """Combine states in a tree, doubling the reach at each level."""
    q, k, v = wide(query, key, value)
    q, k = elu_plus_one(q), elu_plus_one(k)
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
    """Sum odd and even keys apart, and add the two, the way split reductions do."""
    q, k, v = wide(query, key, value)
    scores = lower_triangle(elu_plus_one(q) @ elu_plus_one(k).swapaxes(-1, -2))
    halves = [scores[..., i::2] @ v[..., i::2, :] for i in (1, 0)]
    weights = [scores[..., i::2].sum(-1, keepdims=True) for i in (1, 0)]
    return ((halves[0] + halves[1]) / (weights[0] + weights[1])).astype(query.dtype)


def divides_first(query: Array, key: Array, value: Array) -> Array:
    """Scale the queries, normalise the weights, then average, as softmax code does."""
    q, k, v = wide(query, key, value)
    q = elu_plus_one(q) * np.asarray(q.shape[-1] ** -0.5, q.dtype)
    scores = lower_triangle(q @ elu_plus_one(k).swapaxes(-1, -2))
    return ((scores / scores.sum(-1, keepdims=True)) @ v).astype(query.dtype)


def renormalises(query: Array, key: Array, value: Array) -> Array:
    """Keep every row normalised as chunks of keys come in, like online softmax."""
    q, k, v = wide(query, key, value)
    q, k = elu_plus_one(q), elu_plus_one(k)
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
    q, k, v = wide(query, key, value)
    q, k = elu_plus_one(q), elu_plus_one(k)
    numerator = np.zeros((*q.shape[:-1], v.shape[-1]), v.dtype)
    denominator = np.zeros((*q.shape[:-1], 1), v.dtype)
    for feature in range(q.shape[-1]):
        of = slice(feature, feature + 1)
        numerator += q[..., of] * np.cumsum(k[..., of] * v, axis=-2)
        denominator += q[..., of] * np.cumsum(k[..., of], axis=-2)
    return (numerator / denominator).astype(query.dtype)


def multiplies_by_reciprocal(query: Array, key: Array, value: Array) -> Array:
    """Multiply by the reciprocal of the denominator: one rounding more."""
    parts = Parts(chunk=64, divide=lambda n, d: n * (1 / d))
    return assemble(parts)(query, key, value)


def textbook_features(query: Array, key: Array, value: Array) -> Array:
    """``elu(x) + 1`` as most code has it: absolutely, not relatively, accurate."""

    def elu_and_one(x: Array) -> Array:
        elu: Array = np.where(x > 0, x, np.expm1(np.minimum(x, 0)))
        return elu + 1

    return assemble(Parts(chunk=32, features=elu_and_one))(query, key, value)


CORRECT: dict[str, Kernel] = {
    kernel.__name__: kernel
    for kernel in (
        quadratic,
        recurrent,
        backwards,
        prefix_sums,
        tree_scan,
        odd_then_even,
        divides_first,
        renormalises,
        features_outside,
        multiplies_by_reciprocal,
        textbook_features,
    )
}
CORRECT["chunk_16"] = assemble(Parts())
CORRECT["chunk_100"] = assemble(Parts(chunk=100))
CORRECT["chunk_32_with_state"] = stateful(Parts(chunk=32))
CORRECT["recurrent_with_state"] = stateful(Parts(chunk=1))
