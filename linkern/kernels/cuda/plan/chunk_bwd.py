"""Planner of `chunk_bwd.cu`: the chunkwise backward on tensor cores.

The forward kernel computes a checkpoint before each segment; then the backward kernel
processes all heads.
"""

from typing import Any, NamedTuple

import numpy as np

from linkern.array import astype, dtype_name
from linkern.kernels.cuda.launch import Array, Device, Launch
from linkern.kernels.cuda.layouts import (
    address_or_null,
    in_order,
    instance,
    present,
    record,
    rows,
    rows_or_null,
)
from linkern.kernels.cuda.plan import chunk_fwd, state_passing
from linkern.kernels.cuda.plan.call import Call, State
from linkern.kernels.cuda.plan.tiles import TileShape, padded_size

__all__ = ["fits", "plan", "shape_of"]

# Most chunks between checkpoints; fewest chunks of a group of segments, where heads are
# split because there are few.
_SEGMENT_CHUNKS, _MIN_CHUNKS = 16, 4
# Tokens of a chunk, the fastest first; warps of a block; most features and values, of
# which a block has all.
_TOKENS, _WARPS, _MAX_SIZE = (64, 32, 16), 8, 128
# Number of 16-bit parts that a number is split into, and the type in C that says so.
_SPLITS = {
    "bfloat16": (1, "bf16"),
    "float16": (2, "f16_split"),
    "float32": (3, "float"),
}


def fits(device: Device, call: Call, output_grad: Array | None) -> bool:
    """Return True if the kernel can compute the gradients of a call."""
    if output_grad is None or 0 in call.query.shape:
        return False
    if not chunk_fwd.fits(device, call):
        return False
    aligned = chunk_fwd.rows_are_aligned(device, output_grad)
    return aligned and _tile_shape(call, device.shared) is not None


def _tile_shape(call: Call, shared: int) -> TileShape | None:
    sizes = call.query.shape[-1], call.value.shape[-1]
    return shape_of(_dtype(call), *sizes, shared)


def _dtype(call: Call) -> str:
    return dtype_name(call.query.dtype)


def shape_of(dtype: str, features: int, values: int, shared: int) -> TileShape | None:
    """Return the first tile shape that fits so much shared memory; None for none."""
    features, values = map(padded_size, (features, values))
    for tokens in _TOKENS if max(features, values) <= _MAX_SIZE else ():
        shape = TileShape(features, values, tokens, _WARPS)
        if _shared_bytes(dtype, shape) <= shared:
            return shape
    return None


def plan(
    device: Device,
    call: Call,
    output_grad: Array,
    state_grads: State,
    gradients: tuple[Array, Array, Array, Array | None],
) -> tuple[list[Launch], State]:
    """Plan all gradients.

    Parameters
    ----------
    device : Device
        Allocates workspace.
    call : Call
        One that `fits`, of at least one token.
    output_grad : array (B, H, T, V)
        Gradient of the output, in its dtype.
    state_grads : tuple of array or None
        Gradients of the state after the last token; None for zeros.
    gradients : tuple of array
        Gradients of queries, keys, values and log-decays, in C order; written.

    Returns
    -------
    launches : list of Launch
        In the order in which to launch them.
    initial : tuple of array (B H, K, V) and (B H, K) or None
        Gradients of the state before the first token, which they write.
    """
    shape = _tile_shape(call, device.shared)
    assert shape is not None
    split = _split(-(-call.query.shape[-2] // shape.tokens), call.heads, device)
    final = _in_order(state_grads, call)
    launches: list[Launch] = []
    checkpoints: State = call.memory, call.normalizer
    if split.segments > 1:
        forward_shape = chunk_fwd.tile_shape(call)
        assert forward_shape is not None
        lengths = split.segments, split.chunks * shape.tokens
        launches, checkpoints = chunk_fwd.plan_checkpoints(
            device, call, forward_shape, *lengths, (None, None)
        )
    lines = call.heads, split.groups
    work = _Work(
        output_grad,
        gradients,
        checkpoints,
        device.empty(
            (*lines, split.chunks, _state_tile_bytes(_dtype(call), shape)), np.uint8
        ),
        _group_state_grads(device, call, lines, final),
        device.empty(lines, np.float32),
    )
    if split.groups > 1:
        launches += [
            _launch(device, call, shape, split, work, all_gradients=False),
            state_passing.plan(
                *(device, call, work.state_grads, work.decay_total),
                *(final, (None, None)),
                reverse=True,
            ),
        ]
    launches.append(_launch(device, call, shape, split, work, all_gradients=True))
    memory, normalizer = (None if x is None else x[:, 0] for x in work.state_grads)
    return launches, (memory, normalizer)


class _Split(NamedTuple):
    """Segments of a head, and groups of segments.

    Parameters
    ----------
    chunks : int
        Chunks of a segment, before which there is a checkpoint.
    segments : int
        Segments of a head.
    group_segments : int
        Segments of a group, which one block processes.
    groups : int
        Groups of a head.
    """

    chunks: int
    segments: int
    group_segments: int
    groups: int


def _split(chunks: int, heads: int, device: Device) -> _Split:
    """Split a head of so many chunks; into several groups if there are few heads."""
    few = 2 * heads <= device.multiprocessors
    wanted = device.multiprocessors // heads if few else 1
    group_chunks = max(-(-chunks // wanted), min(chunks, _MIN_CHUNKS))
    segment_chunks = min(group_chunks, _SEGMENT_CHUNKS)
    segments = -(-chunks // segment_chunks)
    group_segments = -(-group_chunks // segment_chunks)
    return _Split(
        segment_chunks, segments, group_segments, -(-segments // group_segments)
    )


class _Work(NamedTuple):
    """Arrays of a backward pass beside its inputs; see ``ChunkBwdParams``."""

    output_grad: Array
    gradients: tuple[Array, Array, Array, Array | None]
    checkpoints: State
    chunk_states: Array
    state_grads: State
    decay_total: Array


def _in_order(state_grads: State, call: Call) -> State:
    """Return gradients of the final state in its shape and dtype, and in C order."""
    arrays: list[Array | None] = []
    for x, like in zip(state_grads, (call.memory, call.normalizer), strict=True):
        if x is None or like is None:
            arrays.append(None)
        else:
            flat: Any = astype(x, like.dtype)
            arrays.append(in_order(flat.reshape(like.shape)))
    return arrays[0], arrays[1]


def _group_state_grads(
    device: Device, call: Call, lines: tuple[int, int], final: State
) -> State:
    """Return gradients of the states after all groups; only the last is filled in."""
    states: list[Array | None] = []
    for like, x in zip((call.memory, call.normalizer), final, strict=True):
        if like is None:
            states.append(None)
            continue
        state = device.empty((*lines, *like.shape[2:]), like.dtype)
        last = state[:, -1]
        last[...] = 0 if x is None else x.reshape(last.shape)
        states.append(state)
    return states[0], states[1]


def _launch(
    device: Device,
    call: Call,
    shape: TileShape,
    split: _Split,
    work: _Work,
    *,
    all_gradients: bool,
) -> Launch:
    io = _SPLITS[dtype_name(call.query.dtype)][1]
    options = call.feature_map, call.log_decay is not None, call.normalize
    query_grad, key_grad, value_grad, log_decay_grad = work.gradients
    return Launch(
        file="chunk_bwd",
        kernel=instance("chunk_bwd", instance("TileShape", io, *shape), *options),
        blocks=call.heads * split.groups,
        threads=32 * shape.warps,
        shared=_shared_bytes(_dtype(call), shape),
        parameters=record(
            query=rows(device, call.query),
            key=rows(device, call.key),
            value=rows(device, call.value),
            output_grad=rows(device, work.output_grad),
            log_decay=rows_or_null(device, call.log_decay),
            query_grad=rows(device, query_grad),
            key_grad=rows(device, key_grad),
            value_grad=rows(device, value_grad),
            log_decay_grad=rows_or_null(device, log_decay_grad),
            checkpoints=address_or_null(device, work.checkpoints[0]),
            checkpoint_normalizers=address_or_null(device, work.checkpoints[1]),
            chunk_states=device.address(work.chunk_states),
            dstate=address_or_null(device, work.state_grads[0]),
            dnormalizer=address_or_null(device, work.state_grads[1]),
            decay_total=device.address(work.decay_total),
            sizes=call.sizes,
            segments=np.int64(split.segments),
            segment_tokens=np.int64(split.chunks * shape.tokens),
            groups=np.int64(split.groups),
            group_segments=np.int64(split.group_segments),
            all_gradients=np.int64(all_gradients),
            scale=np.float32(call.scale),
        ),
        holds=present(
            *(work.chunk_states, work.decay_total),
            *(*work.checkpoints, *work.state_grads),
        ),
    )


def _state_tile_bytes(dtype: str, shape: TileShape) -> int:
    """Return the size of the struct ``StateTile``."""
    parts, _ = _SPLITS[dtype]
    return 2 * parts * shape.features * shape.columns + 4 * shape.features


def _shared_bytes(dtype: str, shape: TileShape) -> int:
    """Return the size of the struct ``BwdStorage``."""
    parts, _ = _SPLITS[dtype]
    itemsize = 4 if dtype == "float32" else 2
    # Queries, keys, values and output gradients: as staged, and as operands.
    entries = 2 * shape.tokens * (shape.features + shape.columns)
    chunks = entries * (itemsize + 2 * parts)
    scores = 2 * shape.tokens**2 * 2 * parts
    tiles = shape.tokens // 16
    slices = shape.warps // tiles
    row_sums = shape.tokens * (4 * slices + 2)
    decays = shape.tokens * (24 + 2) + tiles
    decay_grad = shape.tokens * (2 * tiles + 17 + 1 + slices) + shape.warps
    states = 2 * _state_tile_bytes(dtype, shape)
    size = chunks + states + scores + 4 * (row_sums + decays + decay_grad)
    return -(-size // 16) * 16
