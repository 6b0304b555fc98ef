"""Planner of `chunk_fwd.cu`: the chunkwise forward on tensor cores.

If there are few heads, each is split into segments. A first launch computes the
contribution of every segment from a zero state, `state_passing` scans these, and a
second launch computes the output of all segments from their initial states.
"""

from typing import Any

import numpy as np

from linkern.array import dtype_name
from linkern.kernels.cuda.launch import Array, Device, Launch
from linkern.kernels.cuda.layouts import (
    address_or_null,
    gates,
    instance,
    present,
    record,
    rows,
)
from linkern.kernels.cuda.plan import state_passing
from linkern.kernels.cuda.plan.call import Call, State
from linkern.kernels.cuda.plan.choice import Choice, choose
from linkern.kernels.cuda.plan.tiles import (
    SHARED,
    Sizes,
    TileShape,
    padded_size,
    safe_shape,
)

__all__ = [
    "TileShape",
    "fits",
    "padded_size",
    "plan",
    "plan_checkpoints",
    "rows_are_aligned",
    "tile_shape",
]


def tile_shape(call: Call, shared: int = SHARED) -> TileShape | None:
    """Return the safe tile shape for so much shared memory; None if there is none."""
    return safe_shape(_sizes(call), shared)


def _sizes(call: Call) -> Sizes:
    batch, heads, tokens, features = call.query.shape
    values = call.value.shape[-1]
    return Sizes(call.query.dtype.itemsize, batch * heads, tokens, features, values)


def fits(device: Device, call: Call, shared: int = SHARED) -> bool:
    """Return True if the kernel can compute a call.

    Rows are copied in units of 16 bytes, and a row of features at once.
    """
    io = dtype_name(call.query.dtype)
    # exp leaves the range of float16 long before that of float32.
    if io == "float64" or (io == "float16" and call.feature_map == "EXP"):
        return False
    arrays = (call.query, call.key, call.value)
    if 0 in (call.query.shape[-1], call.value.shape[-1]):
        return False
    aligned = all(rows_are_aligned(device, x) for x in arrays)
    return aligned and tile_shape(call, shared) is not None


def plan(
    device: Device,
    call: Call,
    output: Array,
    memory: Array,
    normalizer: Array | None,
    *,
    multiprocessors: int = 1,
    shared: int = SHARED,
    choice: Choice | None = None,
) -> list[Launch]:
    """Plan the output and the state after the last token.

    Parameters
    ----------
    device : Device
        Allocates workspace.
    call : Call
        One that `fits`.
    output : array (B, H, T, V)
        In C order; written.
    memory, normalizer : array (B, H, K, V), (B, H, K) or None
        State after the last token, in C order; written.
    multiprocessors : int
        Of the device; blocks should fill them.
    shared : int
        Bytes of shared memory that a block may have.
    choice : Choice, optional
        In place of the planner's own.

    Returns
    -------
    list of Launch
        In the order in which to launch them.
    """
    choice = choice or choose(_sizes(call), multiprocessors, shared)
    if choice is None:
        msg = f"no tile of rows of {call.query.shape[-1]} features fits {shared} bytes"
        raise ValueError(msg)
    shape, segments = choice.shape, choice.segments
    initial, final = (call.memory, call.normalizer), (memory, normalizer)
    if segments[0] == 1:
        return [_launch(device, call, shape, output, initial, final, None, segments)]
    launches, states = plan_checkpoints(device, call, shape, *segments, final)
    none = (None, None)
    last = _launch(device, call, shape, output, states, none, None, segments)
    return [*launches, last]


def plan_checkpoints(
    device: Device,
    call: Call,
    shape: TileShape,
    segments: int,
    segment_tokens: int,
    final: State,
) -> tuple[list[Launch], State]:
    """Plan the state before each segment, and that after the last one.

    Parameters
    ----------
    device : Device
        Allocates the states.
    call : Call
        One that `fits`.
    shape : TileShape
        Of the call.
    segments, segment_tokens : int
        Segments of a head, and tokens of a segment: whole chunks.
    final : tuple of array (B, H, K, V) and (B, H, K) or None
        Where the state after the last token goes, in C order; None if not needed.

    Returns
    -------
    launches : list of Launch
        In the order in which to launch them.
    checkpoints : tuple of array (B H, segments, K, V) and (B H, segments, K) or None
        The states that they write.
    """
    heads, real = call.heads, np.dtype(np.float32)
    features, values = call.query.shape[-1], call.value.shape[-1]
    # The contribution of each segment, then the state before it.
    memories = device.empty((heads, segments, features, values), real)
    normalizers = None
    if call.normalize:
        normalizers = device.empty((heads, segments, features), real)
    decay_total = device.empty((heads, segments), real)
    states, none = (memories, normalizers), (None, None)
    lengths = segments, segment_tokens
    initial = call.memory, call.normalizer
    launches = [
        _launch(device, call, shape, None, none, states, decay_total, lengths),
        state_passing.plan(device, call, states, decay_total, initial, final),
    ]
    return launches, states


def _launch(
    device: Device,
    call: Call,
    shape: TileShape,
    output: Array | None,
    initial: State,
    final: State,
    decay_total: Array | None,
    segments: tuple[int, int],
) -> Launch:
    decays = call.log_decay is not None
    flags = (decays, call.normalize, output is not None)
    slices = -(-call.value.shape[-1] // shape.columns)
    return Launch(
        file="chunk_fwd",
        kernel=instance(
            "chunk_fwd",
            shape.name(dtype_name(call.query.dtype)),
            call.feature_map,
            *flags,
        ),
        blocks=call.heads * segments[0] * slices,
        threads=32 * shape.warps,
        shared=shape.shared_bytes(call.query.dtype.itemsize),
        parameters=record(
            query=rows(device, call.query),
            key=rows(device, call.key),
            value=rows(device, call.value),
            log_decay=gates(device, call.log_decay, np.float32),
            output=rows(device, call.query if output is None else output),
            initial_state=address_or_null(device, initial[0]),
            initial_normalizer=address_or_null(device, initial[1]),
            final_state=address_or_null(device, final[0]),
            final_normalizer=address_or_null(device, final[1]),
            decay_total=address_or_null(device, decay_total),
            broken=0,
            sizes=call.sizes,
            segments=np.int64(segments[0]),
            segment_tokens=np.int64(segments[1]),
            scale=np.float32(call.scale),
        ),
        holds=present(*initial, *final, decay_total),
    )


def rows_are_aligned(device: Device, x: Any) -> bool:
    """Return True if rows begin and end at multiples of 16 bytes."""
    strides = [s for s, n in zip(x.strides, x.shape, strict=True) if n > 1][:-1]
    steps: list[Any] = [device.address(x), x.shape[-1] * x.itemsize, *strides]
    return all(step % 16 == 0 for step in steps)
