"""Planner of `chunk_fwd_simt.cu`: the chunkwise forward without tensor cores."""

import numpy as np

from linkern.array import dtype_name
from linkern.kernels.cuda.launch import Array, Device, Launch
from linkern.kernels.cuda.layouts import (
    IO,
    address_or_null,
    gates,
    instance,
    real_of,
    record,
    rows,
)
from linkern.kernels.cuda.plan.call import Call

__all__ = ["plan"]

# As in chunk_fwd_simt.cu.
_CHUNK, _PANEL, _COLUMNS, _THREADS = 16, 32, 32, 128


def plan(
    device: Device,
    call: Call,
    output: Array,
    memory: Array,
    normalizer: Array | None,
) -> Launch:
    """Plan the output and the state after the last token."""
    io, real = IO[dtype_name(call.query.dtype)], real_of(call.query)
    decays = call.log_decay is not None
    options = (call.feature_map, decays, call.normalize)
    return Launch(
        file="chunk_fwd_simt",
        kernel=instance("chunk_fwd_simt", io, real, *options),
        blocks=call.heads * max(1, -(-call.value.shape[-1] // _COLUMNS)),
        threads=_THREADS,
        shared=_shared_bytes(call),
        parameters=record(
            query=rows(device, call.query),
            key=rows(device, call.key),
            value=rows(device, call.value),
            log_decay=gates(device, call.log_decay, memory.dtype),
            output=rows(device, output),
            initial_state=address_or_null(device, call.memory),
            initial_normalizer=address_or_null(device, call.normalizer),
            final_state=device.address(memory),
            final_normalizer=address_or_null(device, normalizer),
            broken=0,
            sizes=call.sizes,
            scale=np.asarray(call.scale, memory.dtype),
        ),
    )


def _shared_bytes(call: Call) -> int:
    """Return the size of the struct ``FwdSimtStorage`` and of the normalizer."""
    chunk, panel, columns = _CHUNK, _PANEL, _COLUMNS
    decays = chunk * (chunk + 1) + 2 * chunk
    tiles = 2 * chunk * (panel + 1) + chunk * columns + panel * columns
    entries = tiles + chunk * (chunk + 1) + 2 * chunk + decays
    itemsize = 8 if real_of(call.query) == "double" else 4
    features: int = call.query.shape[-1]
    return (entries + features) * itemsize
