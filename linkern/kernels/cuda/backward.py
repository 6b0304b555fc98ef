"""Gradients of causal attention on a GPU: there for the memories, and back for all."""

from typing import Any, NamedTuple

import numpy as np

from linkern import feature_maps
from linkern.array import astype, dtype_name
from linkern.kernels.cuda.attend import call_of
from linkern.kernels.cuda.launch import Array, Device, Launch
from linkern.kernels.cuda.layouts import (
    IO,
    by_head,
    in_order,
    instance,
    real_of,
    record,
    rows,
    rows_or_null,
)
from linkern.kernels.cuda.plan import chunk_bwd
from linkern.kernels.cuda.plan.chunk_fwd_simt import Call
from linkern.kernels.numpy.backward import Gradients

__all__ = ["pullback"]

# As in backward.cu.
_CHUNK, _PANEL, _SEGMENT, _THREADS = 16, 32, 16, 256


def pullback(
    device: Device,
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None,
    memory: Array,
    normalizer: Array | None,
    output_cotangent: Array | None,
    memory_cotangent: Array | None,
    normalizer_cotangent: Array | None,
    *,
    feature_map: Any = feature_maps.identity,
    scale: float | None = None,
) -> Gradients:
    """Return the gradients of the inputs of `linkern.kernels.cuda.attend.attend`.

    Parameters
    ----------
    device : Device
        Where the arrays are.
    query, key, value, log_decay, memory, normalizer
        What it was called with.
    output_cotangent : array (..., T, V) or None
        Cotangent of the output, in its dtype; None for zero, as the others.
    memory_cotangent, normalizer_cotangent : array (..., K, V), (..., K) or None
        Cotangents of the state after the last token.
    feature_map, scale
        What it was called with.

    Returns
    -------
    Gradients
        New arrays; those of the state may be parts of one.
    """
    call = call_of(query, key, value, log_decay, memory, normalizer, feature_map, scale)
    cotangent = None
    if output_cotangent is not None:
        cotangent = by_head(astype(output_cotangent, query.dtype))
    fits = chunk_bwd.fits(device, call, cotangent)
    pull = _on_tensor_cores if fits else _plainly
    found = pull(device, call, cotangent, memory_cotangent, normalizer_cotangent)
    inputs = (query, key, value, log_decay, memory, normalizer)
    return Gradients(*map(_shaped, found, inputs))


def _shaped(gradient: Array, like: Array) -> Array:
    """Return a gradient in the shape and dtype of an input."""
    return None if like is None else astype(gradient.reshape(like.shape), like.dtype)


def _on_tensor_cores(
    device: Device,
    of: Call,
    cotangent: Array,
    memory_cotangent: Array | None,
    normalizer_cotangent: Array | None,
) -> Gradients:
    """Return gradients by head, of a call that fits."""

    def new(x: Array) -> Array:
        return None if x is None else device.empty(x.shape, x.dtype)

    def given(x: Array, like: Array) -> Array:
        if x is None or like is None:
            return None
        flat: Array = astype(x, like.dtype)
        return in_order(flat.reshape(like.shape))

    rows = new(of.query), new(of.key), new(of.value), new(of.log_decay)
    ends = (
        given(memory_cotangent, of.memory),
        given(normalizer_cotangent, of.normalizer),
    )
    outside: tuple[Array, Array]
    launches, outside = chunk_bwd.backward(device, of, cotangent, ends, rows)
    for launch in launches:
        device.launch(launch)
    return Gradients(*rows, *outside)


def _plainly(
    device: Device,
    of: Call,
    cotangent: Array | None,
    memory_cotangent: Array | None,
    normalizer_cotangent: Array | None,
) -> Gradients:
    """Return gradients by head, of any call."""
    values = of.value.shape[-1]
    work = _work(device, of, cotangent)
    _fill(work.kept[:, 0], of.memory, of.normalizer)
    _fill(work.outside, memory_cotangent, normalizer_cotangent)
    if 0 not in (*work.kept.shape, of.query.shape[-2]):
        device.launch(_keep(device, of, work))
        device.launch(_back(device, of, work))
    return Gradients(
        work.query,
        work.key,
        work.value,
        work.log_decay,
        work.outside[..., :values],
        work.outside[..., values] if of.normalize else None,
    )


class _Work(NamedTuple):
    """What is written, by head; a normalizer is one more column of each memory."""

    cotangent: Array | None
    query: Array
    key: Array
    value: Array
    log_decay: Array | None
    kept: Array
    inside: Array
    outside: Array


def _work(device: Device, of: Call, cotangent: Array | None) -> _Work:
    """Return the arrays that kernels need beside the inputs."""
    assert of.memory is not None
    real = of.memory.dtype
    batch, heads, tokens, features = of.query.shape
    width, segment = of.value.shape[-1] + of.normalize, _CHUNK * _SEGMENT

    def states(*count: int) -> Array:
        return device.empty((batch * heads, *count, features, width), real)

    def gradient(x: Array) -> Array:
        found: Array = device.empty(x.shape, x.dtype)
        if not features * width:  # nothing is read, and nothing launched
            found[...] = 0
        return found

    return _Work(
        cotangent=cotangent,
        query=gradient(of.query),
        key=gradient(of.key),
        value=gradient(of.value),
        log_decay=None if of.log_decay is None else gradient(of.log_decay),
        kept=states(max(1, -(-tokens // segment))),
        inside=states(_SEGMENT),
        outside=states(),
    )


def _fill(state: Array, memory: Array | None, normalizer: Array | None) -> None:
    """Write a memory with its normalizer as the last column; zeros for None."""
    state[...] = 0
    if memory is not None:
        part = state[..., : memory.shape[-1]]
        part[...] = memory.reshape(part.shape)
    if normalizer is not None:
        state[..., -1] = normalizer.reshape(state.shape[:-1])


def _keep(device: Device, of: Call, work: _Work) -> Launch:
    """Plan to keep the memory before each segment."""
    heads, _, features, width = work.kept.shape
    tiles = -(-features // _PANEL) * -(-width // _PANEL)
    return _launch(device, of, work, "keep_memory", heads * tiles)


def _back(device: Device, of: Call, work: _Work) -> Launch:
    """Plan all gradients."""
    return _launch(device, of, work, "additive_backward", work.kept.shape[0])


def _launch(device: Device, of: Call, work: _Work, kernel: str, blocks: int) -> Launch:
    io, real = IO[dtype_name(of.query.dtype)], real_of(of.query)
    flags = (of.log_decay is not None, of.normalize)
    return Launch(
        file="backward",
        kernel=instance(kernel, io, real, of.feature_map, *flags),
        blocks=blocks,
        threads=_THREADS,
        shared=_shared(of),
        parameters=_parameters(device, of, work),
    )


def _parameters(device: Device, of: Call, work: _Work) -> Any:
    """Return the struct ``Backward``."""
    return record(
        query=rows(device, of.query),
        key=rows(device, of.key),
        value=rows(device, of.value),
        cotangent=rows_or_null(device, work.cotangent),
        log_decay=rows_or_null(device, of.log_decay),
        query_gradient=rows(device, work.query),
        key_gradient=rows(device, work.key),
        value_gradient=rows(device, work.value),
        log_decay_gradient=rows_or_null(device, work.log_decay),
        kept=device.address(work.kept),
        inside=device.address(work.inside),
        outside=device.address(work.outside),
        sizes=of.sizes,
        scale=np.asarray(of.scale, work.outside.dtype),
    )


def _shared(of: Call) -> int:
    """Return the size of the struct ``Tiles``."""
    chunk, panel = _CHUNK, _PANEL
    decays = chunk * (chunk + 1) + 2 * chunk
    tiles = (4 * chunk + 2 * panel) * (panel + 1)
    pairs = 2 * chunk * (chunk + 1) + (chunk + 1) ** 2
    numbers = tiles + pairs + 3 * chunk + _THREADS // 32 + decays
    return numbers * (8 if real_of(of.query) == "double" else 4)
