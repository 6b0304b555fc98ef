"""A chunkwise kernel with state and gradients, made of parts that can be replaced.

Most planted defects are this kernel with one part exchanged: a mask, a divisor, the
rounding of what is carried. It is causal linear attention with ``elu(x) + 1`` on NumPy
arrays ``(..., T, K)``, as its author might write it, and no relative of the reference.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "Backward",
    "Kernel",
    "Parts",
    "all_tokens",
    "assemble",
    "elu_plus_one",
    "stateful",
]

# These kernels stand for code that nobody typed.
Array = Any
Kernel = Callable[..., Any]
Change = Callable[[Array], Array]


def elu_plus_one(x: Array) -> Array:
    """``elu(x) + 1`` with full relative accuracy."""
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def slope_of_elu(x: Array) -> Array:
    """Its derivative."""
    return np.where(x > 0, np.ones_like(x), np.exp(np.minimum(x, 0)))


def lower_triangle(scores: Array) -> Array:
    """Keep the scores of the past and the present."""
    rows, columns = scores.shape[-2:]
    if rows == columns == 1:  # of one token by itself: a recurrence is made of those
        return scores
    return np.where(_past(rows, columns), scores, scores.dtype.type(0))


@lru_cache(maxsize=64)
def _past(queries: int, keys: int) -> Array:
    """Which keys each query sees; most chunks are as long as the one before."""
    return np.tri(queries, keys, dtype=bool)


def quotient(numerator: Array, denominator: Array) -> Array:
    """Divide; nothing else."""
    return numerator / denominator


def everything(x: Array) -> Array:
    """Leave as it is."""
    return x


def whole_state(memory: Array, normalizer: Array) -> tuple[Array, Array]:
    """Leave a state as it is."""
    return memory, normalizer


def all_tokens(first: int, length: int, chunk: int) -> Array:
    """How often each token of a chunk counts: once."""
    del first, chunk
    return np.ones(length)


@dataclass(frozen=True)
class Backward:
    """The parts of the gradients; each default is right.

    Parameters
    ----------
    query_divisor, key_divisor : float
        Weight of the path through the normalizer in the gradients of queries and keys.
    mask : callable
        Which pairs of a chunk count in the gradient of the values.
    counted : callable
        How often each query of a chunk is handed back to earlier keys.
    carried : callable
        What happens to the gradient of the state between chunks.
    saved : callable
        What happens to the output that the backward pass uses again.
    slope : callable
        Derivative of the feature map.
    final : bool
        Whether the gradient of the final state is used.
    """

    query_divisor: float = 1.0
    key_divisor: float = 1.0
    mask: Change = lower_triangle
    counted: Callable[[int, int, int], Array] = all_tokens
    carried: Change = everything
    saved: Change = everything
    slope: Change = slope_of_elu
    final: bool = True


@dataclass(frozen=True)
class Parts:
    """The parts of a chunkwise kernel; each default is right.

    Parameters
    ----------
    chunk : int
        Tokens per chunk.
    features, operand, values, scores, carried, normalizer : callable
        Feature map; what happens to the operands of products, to the values, to the
        scores, to the memory and to the normalizer carried between chunks.
    mask : callable
        Which scores of a chunk count.
    written, weighed : callable
        How often each token of a chunk is added to the memory and to the normalizer.
    divide : callable
        Numerator and denominator to output.
    finish : callable
        Output to what is returned.
    received, returned : callable
        Memory and normalizer of the initial state to what is used of them; those of the
        final state to what is returned.
    backward : Backward
        The parts of the gradients.
    """

    chunk: int = 16
    features: Change = elu_plus_one
    operand: Change = everything
    values: Change = everything
    scores: Change = everything
    carried: Change = everything
    normalizer: Change = everything
    mask: Change = lower_triangle
    written: Callable[[int, int, int], Array] = all_tokens
    weighed: Callable[[int, int, int], Array] | None = None
    divide: Callable[[Array, Array], Array] = quotient
    finish: Change = everything
    received: Callable[[Array, Array], tuple[Array, Array]] = whole_state
    returned: Callable[[Array, Array], tuple[Array, Array]] = whole_state
    backward: Backward = field(default_factory=Backward)


class _Chunk(NamedTuple):
    """One chunk on its way through the kernel, with the state that it met."""

    span: slice
    query: Array
    key: Array
    value: Array
    memory: Array
    normalizer: Array
    denominator: Array
    output: Array


def _walk(parts: Parts, query: Array, key: Array, value: Array, state: Any) -> Any:
    """Return the chunks and the final state."""
    precision = np.result_type(query.dtype, np.float32)
    q, k = (parts.operand(parts.features(x.astype(precision))) for x in (query, key))
    v = parts.operand(parts.values(value.astype(precision)))
    transposed = k.swapaxes(-1, -2)
    memory = np.zeros((*k.shape[:-2], k.shape[-1], v.shape[-1]), precision)
    z = np.zeros((*k.shape[:-2], k.shape[-1]), precision)
    if state is not None:
        memory, z = parts.received(*state)
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


def _counted(
    key: Array, times: Callable[[int, int, int], Array], sizes: tuple[int, int, int]
) -> Array:
    """Return keys as often as they count; once is what they are."""
    if times is all_tokens:
        return key
    return key * times(*sizes).astype(key.dtype)[:, None]


def stateful(parts: Parts) -> Kernel:
    """Return the kernel made of `parts`, which takes an ``initial_state``.

    It returns its output and its final state, and has an attribute ``vjp``.
    """

    def kernel(
        query: Array, key: Array, value: Array, initial_state: Any = None
    ) -> Any:
        chunks, state = _walk(parts, query, key, value, initial_state)
        shape = (*query.shape[:-1], value.shape[-1])
        output = np.zeros(shape, np.result_type(query.dtype, np.float32))
        for chunk in chunks:
            output[..., chunk.span, :] = chunk.output
        return parts.finish(output).astype(query.dtype), parts.returned(*state)

    def vjp(
        query: Array,
        key: Array,
        value: Array,
        output_cotangent: Array,
        initial_state: Any = None,
        state_cotangent: Any = None,
    ) -> Any:
        chunks, _ = _walk(parts, query, key, value, initial_state)
        used = state_cotangent if parts.backward.final else None
        inputs = (query, key, value)
        return _pulled_back(parts, chunks, inputs, output_cotangent, used)

    kernel.vjp = vjp  # type: ignore[attr-defined]
    return kernel


def _pulled_back(
    parts: Parts, chunks: list[_Chunk], inputs: Any, cotangent: Array, of_state: Any
) -> Any:
    """Walk back over the chunks with the gradient of the state."""
    back = parts.backward
    precision = np.result_type(inputs[0].dtype, np.float32)
    of_query, of_key, of_value = (np.zeros(x.shape, precision) for x in inputs)
    if of_state is None:
        lead, sizes = inputs[1].shape[:-2], (x.shape[-1] for x in inputs[1:])
        of_memory = np.zeros((*lead, *sizes), precision)
        of_z = np.zeros((*lead, inputs[1].shape[-1]), precision)
    else:
        of_memory, of_z = of_state
    for chunk in reversed(chunks):
        at = (..., chunk.span, slice(None))
        g = cotangent[at].astype(precision) / chunk.denominator
        through = (g * back.saved(chunk.output)).sum(-1, keepdims=True)
        pairs = g @ np.swapaxes(chunk.value, -1, -2)
        in_query, in_key = (
            np.tril(pairs - weight * through)
            for weight in (back.query_divisor, back.key_divisor)
        )
        of_query[at] = g @ np.swapaxes(chunk.memory, -1, -2) + in_query @ chunk.key
        of_query[at] -= back.query_divisor * through * chunk.normalizer[..., None, :]
        of_key[at] = np.swapaxes(in_key, -1, -2) @ chunk.query + of_z[..., None, :]
        of_key[at] += chunk.value @ np.swapaxes(of_memory, -1, -2)
        in_value = back.mask(chunk.query @ np.swapaxes(chunk.key, -1, -2))
        of_value[at] = np.swapaxes(in_value, -1, -2) @ g + chunk.key @ of_memory
        counts = back.counted(chunk.span.start, chunk.query.shape[-2], parts.chunk)
        counted = chunk.query * counts.astype(precision)[:, None]
        of_memory = back.carried(of_memory + np.swapaxes(counted, -1, -2) @ g)
        of_z = back.carried(of_z - back.key_divisor * (counted * through).sum(-2))
    of_query, of_key = (
        x * back.slope(given.astype(precision))
        for x, given in zip((of_query, of_key), inputs, strict=False)
    )
    gradients = (x.astype(inputs[0].dtype) for x in (of_query, of_key, of_value))
    return (*gradients, (of_memory, of_z))


def assemble(parts: Parts) -> Kernel:
    """Return the kernel made of `parts` without its state and gradients."""
    whole = stateful(parts)

    def kernel(query: Array, key: Array, value: Array) -> Array:
        return whole(query, key, value)[0]

    return kernel
