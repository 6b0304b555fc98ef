"""Planner of `chunk_delta.cu`: the chunkwise forward of the (gated) delta rule."""

import numpy as np

from linkern.array import dtype_name
from linkern.core.recurrence import Terms
from linkern.kernels.cuda.launch import Array, Device, Launch
from linkern.kernels.cuda.layouts import instance
from linkern.kernels.cuda.plan.chunk_fwd import rows_are_aligned
from linkern.kernels.cuda.plan.recurrent import parameters
from linkern.kernels.cuda.plan.tiles import TileShape, padded_size

__all__ = ["fits", "plan", "shared_bytes", "tile_shape"]

# By their names in delta_storage.cuh: all are computed with as float32.
_IO = {"float16": "f16_wide", "bfloat16": "bf16_wide", "float32": "float"}
# Bytes of a number, and of its parts.
_ITEMSIZE, _OPERAND = {"float16": 2, "bfloat16": 2, "float32": 4}, 6
# (columns, tokens), the longest chunks first; the last one fits every GPU. With more
# features a thread would need more registers than there are.
_SHAPES = [(64, 32), (64, 16)]
_MOST_FEATURES = 64
# As in delta_storage.cuh.
_PITCH, _MASK_PITCH = 24, 24


def tile_shape(dtype: str, features: int, values: int, shared: int) -> TileShape | None:
    """Return the tile shape for rows of a dtype; None if none fits the shared memory.

    A warp has 16 columns, or scores of a tile of 16 tokens: of queries, of erases, or,
    if there are four tiles, of both.
    """
    if dtype not in _IO or features > _MOST_FEATURES:
        return None
    for most, tokens in _SHAPES:
        columns = min(most, padded_size(values))
        others = min(4, tokens // 8)
        shape = TileShape(
            padded_size(features), columns, tokens, columns // 16 + others
        )
        if shared_bytes(dtype, shape) <= shared:
            return shape
    return None


def shared_bytes(dtype: str, shape: TileShape) -> int:
    """Return the size of the struct ``DeltaStorage``."""
    itemsize = _ITEMSIZE[dtype]
    entries = shape.tokens * (2 * shape.features + shape.columns)
    rows = entries * (itemsize + 2 * _OPERAND)
    matrices = 2 * 2 * shape.tokens**2 * _OPERAND
    output = 16 * shape.columns * itemsize
    factors = 2 * 3 * shape.tokens + 2
    decays = shape.tokens * (_MASK_PITCH + 2) + shape.tokens // 16
    return rows + matrices + output + 4 * (shape.tokens * _PITCH + factors + decays)


def fits(device: Device, terms: Terms, memory: Array) -> bool:
    """Return True if the kernel can compute terms with a memory of some dtype.

    Parameters
    ----------
    device : Device
        Where the arrays are.
    terms : Terms
        Of ``(batch, heads, T, D)``, as `kernels.cuda.layouts.by_head` returns them. The
        keys erase, and there is one decay for each token, or none. Rows are copied in
        units of 16 bytes.
    memory : array (..., K, V)
        Before the first token.
    """
    if terms.erase is not terms.key or terms.early_erase or terms.early_read:
        return False
    by_channel = terms.log_decay is not None and terms.log_decay.shape[-1] > 1
    features, values = memory.shape[-2:]
    if by_channel or 0 in (features, values) or memory.dtype != np.float32:
        return False
    dtype = dtype_name(terms.query.dtype)
    shape = tile_shape(dtype, features, values, device.shared)
    rows = (terms.query, terms.key, terms.value)
    return shape is not None and all(rows_are_aligned(device, x) for x in rows)


def plan(
    device: Device,
    terms: Terms,
    initial: Array | None,
    output: Array,
    final: Array,
    *,
    scale: float = 1.0,
) -> Launch:
    """Plan the launch for terms that fit; see `kernels.cuda.plan.recurrent.plan`."""
    batch, heads, _, features = terms.query.shape
    values, dtype = terms.value.shape[-1], dtype_name(terms.query.dtype)
    shape = tile_shape(dtype, features, values, device.shared)
    if shape is None:
        msg = f"no tile of rows of {features} features fits {device.shared} bytes"
        raise ValueError(msg)
    tile = instance("TileShape", _IO[dtype], *shape)
    return Launch(
        file="chunk_delta",
        kernel=instance("chunk_delta", tile, terms.log_decay is not None),
        blocks=batch * heads * -(-values // shape.columns),
        threads=32 * shape.warps,
        shared=shared_bytes(dtype, shape),
        parameters=parameters(device, terms, initial, output, final, scale=scale),
    )
