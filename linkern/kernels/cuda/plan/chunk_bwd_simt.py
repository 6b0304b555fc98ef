"""Planner of `chunk_bwd_simt.cu`: the chunkwise backward without tensor cores."""

from typing import Any, NamedTuple

import numpy as np

from linkern.array import dtype_name
from linkern.kernels.cuda.launch import Array, Device, Launch
from linkern.kernels.cuda.layouts import (
    IO,
    instance,
    real_of,
    record,
    rows,
    rows_or_null,
)
from linkern.kernels.cuda.plan.call import Call, State

__all__ = ["plan"]

# As in chunk_bwd_simt_block.cuh.
_CHUNK, _PANEL, _SEGMENT_CHUNKS, _THREADS = 16, 32, 16, 256


class _Work(NamedTuple):
    """Arrays of a backward pass beside its inputs; see ``ChunkBwdSimtParams``."""

    output_grad: Array | None
    gradients: tuple[Array, Array, Array, Array | None]
    checkpoints: Array
    chunk_states: Array
    dstate: Array


def plan(
    device: Device,
    call: Call,
    output_grad: Array | None,
    state_grads: State,
    gradients: tuple[Array, Array, Array, Array | None],
) -> tuple[list[Launch], State]:
    """Plan all gradients; parameters and results are those of `chunk_bwd.plan`."""
    assert call.memory is not None
    real = call.memory.dtype
    batch, heads, tokens, features = call.query.shape
    values = call.value.shape[-1]
    segments = max(1, -(-tokens // (_CHUNK * _SEGMENT_CHUNKS)))

    def states(*count: int) -> Array:
        # A normalizer is one more column of the state.
        shape = (batch * heads, *count, features, values + call.normalize)
        return device.empty(shape, real)

    work = _Work(
        output_grad, gradients, states(segments), states(_SEGMENT_CHUNKS), states()
    )
    _fill(work.checkpoints[:, 0], call.memory, call.normalizer)
    _fill(work.dstate, *state_grads)
    normalizer = work.dstate[..., values] if call.normalize else None
    initial = work.dstate[..., :values], normalizer
    if 0 in (*work.dstate.shape, tokens):
        for x in gradients:
            if x is not None:
                x[...] = 0
        return [], initial
    panels, slices = (-(-size // _PANEL) for size in work.dstate.shape[-2:])
    kernels = {
        "chunk_bwd_simt_checkpoints": call.heads * panels * slices,
        "chunk_bwd_simt": call.heads,
    }
    return [_launch(device, call, work, *item) for item in kernels.items()], initial


def _fill(state: Array, memory: Array | None, normalizer: Array | None) -> None:
    """Write a memory with its normalizer as the last column; zeros for None."""
    state[...] = 0
    if memory is not None:
        columns = state[..., : memory.shape[-1]]
        columns[...] = memory.reshape(columns.shape)
    if normalizer is not None:
        state[..., -1] = normalizer.reshape(state.shape[:-1])


def _launch(
    device: Device, call: Call, work: _Work, kernel: str, blocks: int
) -> Launch:
    io, real = IO[dtype_name(call.query.dtype)], real_of(call.query)
    options = call.feature_map, call.log_decay is not None, call.normalize
    return Launch(
        file="chunk_bwd_simt",
        kernel=instance(kernel, io, real, *options),
        blocks=blocks,
        threads=_THREADS,
        shared=_shared_bytes(call),
        parameters=_parameters(device, call, work),
        holds=(work.checkpoints, work.chunk_states, work.dstate),
    )


def _parameters(device: Device, call: Call, work: _Work) -> Any:
    """Return the struct ``ChunkBwdSimtParams``."""
    query_grad, key_grad, value_grad, log_decay_grad = work.gradients
    return record(
        query=rows(device, call.query),
        key=rows(device, call.key),
        value=rows(device, call.value),
        output_grad=rows_or_null(device, work.output_grad),
        log_decay=rows_or_null(device, call.log_decay),
        query_grad=rows(device, query_grad),
        key_grad=rows(device, key_grad),
        value_grad=rows(device, value_grad),
        log_decay_grad=rows_or_null(device, log_decay_grad),
        checkpoints=device.address(work.checkpoints),
        chunk_states=device.address(work.chunk_states),
        dstate=device.address(work.dstate),
        sizes=call.sizes,
        scale=np.asarray(call.scale, work.dstate.dtype),
    )


def _shared_bytes(call: Call) -> int:
    """Return the size of the struct ``BwdSimtStorage``."""
    chunk, panel = _CHUNK, _PANEL
    decays = chunk * (chunk + 1) + 2 * chunk
    tiles = (4 * chunk + 2 * panel) * (panel + 1)
    scores = 2 * chunk * (chunk + 1) + (chunk + 1) ** 2
    entries = tiles + scores + 3 * chunk + _THREADS // 32 + decays
    return entries * (8 if real_of(call.query) == "double" else 4)
