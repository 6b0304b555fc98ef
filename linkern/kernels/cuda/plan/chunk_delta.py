"""Planner of `chunk_delta.cu`: the chunkwise forward of the (gated) delta rule."""

from linkern.core.recurrence import Terms
from linkern.kernels.cuda.launch import Array, Device, Launch
from linkern.kernels.cuda.plan.by_chunks import (
    BUFFERS,
    COMPUTED,
    IO,
    ITEMSIZE,
    launch,
    rows_fit,
    shape_of,
)
from linkern.kernels.cuda.plan.tiles import TileShape, padded_size

__all__ = ["fits", "plan", "shared_bytes", "tile_shape"]

_MOST_FEATURES = 128
# Most columns and tokens, the fastest first; the last one needs the least.
_SHAPES = [(64, 32), (64, 16)]
# Dtypes and padded features of which a thread has registers for the last one alone.
_LAST_ONLY = {("float32", 128)}
# Columns of blocks, where narrower ones do not all fit at once; and dtypes and padded
# features of which a thread of a block with so many warps has too few registers.
_WIDE, _NEVER_WIDE = 128, {("float16", 128)}
# As in delta_storage.cuh: numbers of a row of a block and of a mask, bytes of pointers.
_BLOCK_PITCH, _MASK_PITCH, _POINTERS = 25, 24, 112


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
    if dtype not in IO or features > _MOST_FEATURES:
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
    rows = entries * BUFFERS[dtype]
    matrices = 2 * 2 * shape.tokens**2 * COMPUTED[dtype]
    output = 16 * shape.columns * ITEMSIZE[dtype]
    factors = (3 + 2 * 2) * shape.tokens + 2
    decays = shape.tokens * (_MASK_PITCH + 2) + shape.tokens // 16
    decays += decays % 2  # a multiple of 8 bytes
    floats = shape.tokens * _BLOCK_PITCH + factors + 2 * decays
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
    if terms.log_decay is not None and terms.log_decay.shape[-1] > 1:
        return False
    return rows_fit(tile_shape, device, terms, memory)


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
    return launch(
        "chunk_delta",
        [terms.log_decay is not None],
        shape or shape_of(tile_shape, device, terms),
        shared_bytes,
        *(device, terms, initial, output, final),
        scale=scale,
    )
