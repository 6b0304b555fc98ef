"""Chunkwise linear attention with a normalizer, made of parts that can be replaced.

It is causal, with ``elu(x) + 1``, state and gradients, on NumPy arrays ``(..., T, K)``.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from linkern.testing.kernels.assembly.parts import (
    CHUNK,
    Array,
    Change,
    Counts,
    Kernel,
    State,
    all_tokens,
    unchanged,
)

__all__ = [
    "Backward",
    "Parts",
    "assemble",
    "elu_plus_one",
    "lower_triangle",
    "slope_of_elu",
    "stateful",
]


def elu_plus_one(x: Array) -> Array:
    """Return ``elu(x) + 1`` with full relative accuracy."""
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def slope_of_elu(x: Array) -> Array:
    """Return the derivative of ``elu(x) + 1``."""
    return np.where(x > 0, np.ones_like(x), np.exp(np.minimum(x, 0)))


def lower_triangle(scores: Array) -> Array:
    """Keep the scores of the past and the present."""
    rows, columns = scores.shape[-2:]
    if rows == columns == 1:  # a chunk of one token, as in a recurrence
        return scores
    return np.where(_past(rows, columns), scores, scores.dtype.type(0))


@lru_cache(maxsize=64)
def _past(queries: int, keys: int) -> Array:
    """Return the causal mask; cached, since most chunks are of one length."""
    return np.tri(queries, keys, dtype=bool)


def quotient(numerator: Array, denominator: Array) -> Array:
    """Divide."""
    return numerator / denominator


@dataclass(frozen=True)
class Backward:
    """The parts of the gradients; each default is right.

    Parameters
    ----------
    query_divisor, key_divisor : float
        Weight of the path through the normalizer in the gradients of queries and keys.
    mask : callable
        Masks the scores in the gradient of the values.
    counted : callable
        How often each query of a chunk counts in the gradient of the state before it.
    carried : callable
        Applied to the gradient of the state between chunks.
    saved : callable
        Applied to the output that the backward pass uses again.
    slope : callable
        Derivative of the feature map.
    final : bool
        True if the gradient of the final state is used.
    """

    query_divisor: float = 1.0
    key_divisor: float = 1.0
    mask: Change = lower_triangle
    counted: Counts = all_tokens
    carried: Change = unchanged
    saved: Change = unchanged
    slope: Change = slope_of_elu
    final: bool = True


@dataclass(frozen=True)
class Parts:
    """The parts of a chunkwise kernel; each default is right.

    Parameters
    ----------
    chunk : int
        Tokens per chunk.
    features, operand, values, scores : callable
        The feature map; applied to all operands of products, to values, to scores.
    carried, normalizer : callable
        Applied to memory and normalizer between chunks; to the normalizer alone.
    mask : callable
        Masks the scores of a chunk.
    written, weighed : callable
        How often each token of a chunk is added to the memory and to the normalizer;
        `weighed` is `written` if None.
    divide : callable
        Makes the output of numerator and denominator.
    finish : callable
        Applied to the output before it is returned.
    received, returned : callable
        Applied to the initial and to the final state, ``(memory, normalizer)``.
    backward : Backward
        The parts of the gradients.
    """

    chunk: int = CHUNK
    features: Change = elu_plus_one
    operand: Change = unchanged
    values: Change = unchanged
    scores: Change = unchanged
    carried: Change = unchanged
    normalizer: Change = unchanged
    mask: Change = lower_triangle
    written: Counts = all_tokens
    weighed: Counts | None = None
    divide: Callable[[Array, Array], Array] = quotient
    finish: Change = unchanged
    received: Change = unchanged
    returned: Change = unchanged
    backward: Backward = field(default_factory=Backward)


class _Chunk(NamedTuple):
    """One chunk: its tokens, the state before it, and what it computed."""

    span: slice
    query: Array
    key: Array
    value: Array
    memory: Array
    normalizer: Array
    denominator: Array
    output: Array


def _forward(
    parts: Parts, query: Array, key: Array, value: Array, state: State
) -> tuple[list[_Chunk], State]:
    """Return the chunks and the final state."""
    precision = np.result_type(query.dtype, np.float32)
    q, k = (parts.operand(parts.features(x.astype(precision))) for x in (query, key))
    v = parts.operand(parts.values(value.astype(precision)))
    transposed = k.swapaxes(-1, -2)
    memory = np.zeros((*k.shape[:-2], k.shape[-1], v.shape[-1]), precision)
    z = np.zeros((*k.shape[:-2], k.shape[-1]), precision)
    if state is not None:
        memory, z = parts.received(state)
    chunks = []
    for first in range(0, q.shape[-2], parts.chunk):
        span = slice(first, first + parts.chunk)
        qc, kc, vc = q[..., span, :], k[..., span, :], v[..., span, :]
        scores = parts.scores(parts.mask(qc @ transposed[..., span]))
        numerator = qc @ memory + scores @ vc
        denominator = (qc @ z[..., None]) + scores.sum(-1, keepdims=True)
        output = parts.divide(numerator, denominator)
        chunks.append(_Chunk(span, qc, kc, vc, memory, z, denominator, output))
        sizes = (first, kc.shape[-2], parts.chunk)
        written = _counted(kc, parts.written, sizes)
        weighed = written
        if parts.weighed is not None:
            weighed = _counted(kc, parts.weighed, sizes)
        memory = parts.carried(memory + written.swapaxes(-1, -2) @ vc)
        z = parts.normalizer(parts.carried(z + weighed.sum(-2)))
    return chunks, (memory, z)


def _counted(key: Array, times: Counts, sizes: tuple[int, int, int]) -> Array:
    """Return keys multiplied by how often they count."""
    if times is all_tokens:
        return key
    return key * times(*sizes).astype(key.dtype)[:, None]


def stateful(parts: Parts) -> Kernel:
    """Return the kernel made of `parts`, which takes an ``initial_state``.

    It returns its output and its final state, and has an attribute ``vjp``.
    """

    def kernel(
        query: Array, key: Array, value: Array, initial_state: State = None
    ) -> Any:
        chunks, state = _forward(parts, query, key, value, initial_state)
        shape = (*query.shape[:-1], value.shape[-1])
        output = np.zeros(shape, np.result_type(query.dtype, np.float32))
        for chunk in chunks:
            output[..., chunk.span, :] = chunk.output
        return parts.finish(output).astype(query.dtype), parts.returned(state)

    def vjp(
        query: Array,
        key: Array,
        value: Array,
        output_cotangent: Array,
        initial_state: Any = None,
        state_cotangent: Any = None,
    ) -> Any:
        chunks, _ = _forward(parts, query, key, value, initial_state)
        final = state_cotangent if parts.backward.final else None
        return _backward(parts, chunks, (query, key, value), output_cotangent, final)

    kernel.vjp = vjp  # type: ignore[attr-defined]
    return kernel


def _backward(
    parts: Parts, chunks: list[_Chunk], inputs: Any, cotangent: Array, d_state: State
) -> Any:
    """Return the gradients of the inputs and of the initial state."""
    back = parts.backward
    precision = np.result_type(inputs[0].dtype, np.float32)
    d_query, d_key, d_value = (np.zeros(x.shape, precision) for x in inputs)
    if d_state is None:
        lead, sizes = inputs[1].shape[:-2], (x.shape[-1] for x in inputs[1:])
        d_memory = np.zeros((*lead, *sizes), precision)
        d_z = np.zeros((*lead, inputs[1].shape[-1]), precision)
    else:
        d_memory, d_z = d_state
    for chunk in reversed(chunks):
        at = (..., chunk.span, slice(None))
        g = cotangent[at].astype(precision) / chunk.denominator
        through = (g * back.saved(chunk.output)).sum(-1, keepdims=True)
        pairs = g @ np.swapaxes(chunk.value, -1, -2)
        in_query, in_key = (
            np.tril(pairs - weight * through)
            for weight in (back.query_divisor, back.key_divisor)
        )
        d_query[at] = g @ np.swapaxes(chunk.memory, -1, -2) + in_query @ chunk.key
        d_query[at] -= back.query_divisor * through * chunk.normalizer[..., None, :]
        d_key[at] = np.swapaxes(in_key, -1, -2) @ chunk.query + d_z[..., None, :]
        d_key[at] += chunk.value @ np.swapaxes(d_memory, -1, -2)
        in_value = back.mask(chunk.query @ np.swapaxes(chunk.key, -1, -2))
        d_value[at] = np.swapaxes(in_value, -1, -2) @ g + chunk.key @ d_memory
        counts = back.counted(chunk.span.start, chunk.query.shape[-2], parts.chunk)
        counted = chunk.query * counts.astype(precision)[:, None]
        d_memory = back.carried(d_memory + np.swapaxes(counted, -1, -2) @ g)
        d_z = back.carried(d_z - back.key_divisor * (counted * through).sum(-2))
    d_query, d_key = (
        gradient * back.slope(x.astype(precision))
        for gradient, x in zip((d_query, d_key), inputs, strict=False)
    )
    gradients = (x.astype(inputs[0].dtype) for x in (d_query, d_key, d_value))
    return (*gradients, (d_memory, d_z))


def assemble(parts: Parts) -> Kernel:
    """Return the kernel made of `parts` without its state and gradients."""
    full = stateful(parts)

    def kernel(query: Array, key: Array, value: Array) -> Array:
        return full(query, key, value)[0]

    return kernel
