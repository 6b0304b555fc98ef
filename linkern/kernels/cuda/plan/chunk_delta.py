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

# By their names in mma.cuh.
_IO = {"float16": "f16_split", "bfloat16": "bf16", "float32": "float"}
# Bytes of a number in all buffers of rows: as it is copied, and in parts.
_ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4}
_BUFFERS = {"float16": 2 + 3 * 4, "bfloat16": 3 * 2, "float32": 4 + 3 * 6}
# Bytes of the parts of a number that was computed.
_COMPUTED = {"float16": 4, "bfloat16": 4, "float32": 6}
_MOST_FEATURES = 128
# Most columns and tokens, the fastest first; the last one needs the least.
_SHAPES = [(64, 32), (64, 16)]
# Dtypes and padded features of which a thread has registers for the last one alone.
_LAST_ONLY = {("float32", 128)}
# Columns of blocks, where narrower ones do not all fit at once; and dtypes and padded
# features of which a thread of a block with so many warps has too few registers.
_WIDE, _NEVER_WIDE = 128, {("float16", 128)}
# As in delta_storage.cuh.
_PITCH, _MASK_PITCH, _POINTERS = 20, 24, 112


def tile_shape(
    dtype: str,
    features: int,
    values: int,
    shared: int,
    *,
    heads: int,
    multiprocessors: int,
) -> TileShape | None:
    """Return the tile shape for rows of a dtype; None if none fits the shared memory.

    A warp has 16 columns, or scores of a tile of 16 tokens: of queries, of erases, or,
    if there are four tiles, of both. A multiprocessor has the registers for one block.
    If it gets several, one after the other, blocks of more columns are better: their
    warps wait for each other's products instead.
    """
    if dtype not in _IO or features > _MOST_FEATURES:
        return None
    kind = dtype, padded_size(features)
    options = _SHAPES[-1:] if kind in _LAST_ONLY else _SHAPES
    most, tokens = options[0]
    many = values > most and heads * -(-values // most) > multiprocessors
    if many and kind not in _NEVER_WIDE:
        options = [(_WIDE, tokens), *options]
    for most, tokens in options:
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
    entries = shape.tokens * (2 * shape.features + shape.columns)
    rows = entries * _BUFFERS[dtype]
    matrices = 2 * 2 * shape.tokens**2 * _COMPUTED[dtype]
    output = 16 * shape.columns * _ITEMSIZE[dtype]
    factors = (3 + 2 * 2) * shape.tokens + 2
    decays = shape.tokens * (_MASK_PITCH + 2) + shape.tokens // 16
    decays += decays % 2  # a multiple of 8 bytes
    floats = shape.tokens * _PITCH + factors + 2 * decays
    return rows + matrices + output + _POINTERS + 4 * floats


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
    shape = _shape_of(device, terms)
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
    shape: TileShape | None = None,
) -> Launch:
    """Plan the launch for terms that fit; see `kernels.cuda.plan.recurrent.plan`.

    With a tile shape other than None the planner does not choose one.
    """
    batch, heads, _, features = terms.query.shape
    values, dtype = terms.value.shape[-1], dtype_name(terms.query.dtype)
    shape = shape or _shape_of(device, terms)
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


def _shape_of(device: Device, terms: Terms) -> TileShape | None:
    """Return the tile shape of a call; None if no kernel fits."""
    batch, heads, _, features = terms.query.shape
    return tile_shape(
        dtype_name(terms.query.dtype),
        features,
        terms.value.shape[-1],
        device.shared,
        heads=batch * heads,
        multiprocessors=device.multiprocessors,
    )
