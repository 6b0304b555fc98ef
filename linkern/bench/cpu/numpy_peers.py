"""Peers on NumPy: linkern as a user calls it, and decoding in plain NumPy."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

import linkern
from linkern.bench.clocks import HostCall
from linkern.bench.tasks import Inputs, Task

__all__ = ["preallocated", "prepare", "tokens"]

Real = NDArray[Any]


def prepare(inputs: Inputs, task: Task) -> HostCall:
    """Return the call of a task."""
    _load_modules()
    if task.kind == "decode":
        return _decoding(inputs)
    if task.kind == "gradient":
        return _gradient(inputs)
    query, key, value = inputs.query, inputs.key, inputs.value
    causal = task.kind == "causal"
    return HostCall(
        lambda: linkern.linear_attention(query, key, value, causal=causal),
        lambda result: [result.output],
    )


def _load_modules() -> None:
    """Import all lazily imported modules: their memory is not that of a call."""
    one = np.ones((1, 1))
    _, pullback = linkern.vjp(linkern.linear_attention, one, one, one)
    pullback(one)


def _gradient(inputs: Inputs) -> HostCall:
    query, key, value = inputs.query, inputs.key, inputs.value

    def call() -> Any:
        result, pullback = linkern.vjp(linkern.linear_attention, query, key, value)
        return result.output, pullback(inputs.cotangent)

    names = ("query", "key", "value")
    return HostCall(call, lambda both: [both[0], *(both[1][name] for name in names)])


def tokens(inputs: Inputs) -> tuple[Real, Real, Real]:
    """Return the inputs as ``(T, B, H, dim)``: each token is contiguous."""
    arrays = inputs.arrays()[:3]
    query, key, value = (np.ascontiguousarray(np.moveaxis(x, 2, 0)) for x in arrays)
    return query, key, value


def _decoding(inputs: Inputs) -> HostCall:
    arrays = tokens(inputs)
    batch_shape, dim = arrays[0].shape[1:-1], arrays[0].shape[-1]
    dtype = arrays[0].dtype.name
    output = np.empty_like(arrays[2])

    def call() -> Real:
        decoder = linkern.Decoder(
            batch_shape=batch_shape, key_dim=dim, value_dim=dim, dtype=dtype
        )
        step = decoder.step
        for query, key, value, out in zip(*arrays, output, strict=True):
            step(query, key, value, out)
        return output

    return HostCall(call, lambda output: [np.moveaxis(output, 0, 2)])


def preallocated(inputs: Inputs, task: Task) -> HostCall:
    """Return decoding with one array for each intermediate result.

    Features of query and key at once; the normalizer is the last column of the state.
    """
    query, key, value = tokens(inputs)
    length, cells, dim = len(query), task.batch * task.heads, task.dim
    new = query.dtype
    both = np.ascontiguousarray(np.stack((query, key), axis=1))
    both = both.reshape(length, 2, cells, dim)
    values = value.reshape(length, cells, dim)
    features, exps = np.empty((2, 2, cells, dim), new)
    row, column = features[0][:, None, :], features[1][:, :, None]
    wide = np.ones((cells, 1, dim + 1), new)
    update = np.empty((cells, dim, dim + 1), new)
    read = np.empty((cells, 1, dim + 1), new)
    numerator, denominator = read[:, 0, :dim], read[:, 0, dim:]
    output = np.empty_like(values)
    zero, one = np.zeros((), new), np.ones((), new)

    def call() -> Real:
        state = np.zeros((cells, dim, dim + 1), new)
        for pair, token, out in zip(both, values, output, strict=True):
            np.minimum(pair, zero, out=exps)
            np.exp(exps, out=exps)
            np.add(pair, one, out=features)
            np.maximum(features, exps, out=features)
            wide[:, 0, :dim] = token
            np.multiply(column, wide, out=update)
            np.add(state, update, out=state)
            np.matmul(row, state, out=read)
            np.divide(numerator, denominator, out=out)
        return output

    return HostCall(call, lambda out: [np.moveaxis(out.reshape(value.shape), 0, 2)])
