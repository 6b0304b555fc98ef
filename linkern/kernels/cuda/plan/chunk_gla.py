"""Planner of `chunk_gla.cu`: the chunkwise forward with a decay for each channel."""

from functools import partial

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

# As in gla_storage.cuh: tokens of a chunk, numbers of a row of a block, and bytes of
# the pointers of a head.
_TOKENS, _BLOCK_PITCH, _POINTERS = 16, 25, 112
_LEAST_FEATURES, _MOST_FEATURES = 32, 128
# Columns of blocks, of those where such blocks do not all run at once, and of those
# with little shared memory; warps that compute what needs no state.
_COLUMNS, _WIDE, _FEW = 64, 128, 32
_OTHERS, _MORE_OTHERS = 4, 8
# Dtypes and padded features of which a multiprocessor runs two blocks; of which warps
# without columns have so much to do that there are more of them; and of which a thread
# of a block of more warps has too few registers.
_TWO_BLOCKS = {("bfloat16", 32), ("bfloat16", 64)}
_MORE_WARPS = {("bfloat16", 128), ("float16", 128)}
_NEVER_WIDE = {("float32", 128)}


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

    A warp has 16 columns, or computes scores and operands. If a multiprocessor gets
    several blocks, one after the other, blocks of more columns are better: the scores
    of a head are computed once.
    """
    if dtype not in IO or features > _MOST_FEATURES:
        return None
    kind = dtype, max(_LEAST_FEATURES, padded_size(features))
    at_once = (2 if kind in _TWO_BLOCKS else 1) * multiprocessors
    others = _MORE_OTHERS if kind in _MORE_WARPS else _OTHERS
    options = [(_COLUMNS, others), (_FEW, others)]
    many = values > _COLUMNS and heads * -(-values // _COLUMNS) > at_once
    if many and kind not in _NEVER_WIDE:
        options = [(_WIDE, _OTHERS), *options]
    for most, others in options:
        columns = min(most, padded_size(values))
        shape = TileShape(kind[1], columns, _TOKENS, columns // 16 + others)
        if shared_bytes(dtype, shape, erases=True) <= shared:
            return shape
    return None


def shared_bytes(dtype: str, shape: TileShape, *, erases: bool) -> int:
    """Return the size of the struct ``GlaStorage``."""
    tokens, features = shape.tokens, shape.features
    rows = 2 * 2 * tokens * features * ITEMSIZE[dtype]
    values = tokens * shape.columns * BUFFERS[dtype]
    operands = (2 * (3 if erases else 2) * tokens + 3 * tokens // 2) * features
    operands *= COMPUTED[dtype]
    scores = 2 * (2 if erases else 1) * tokens**2 * COMPUTED[dtype]
    output = 16 * shape.columns * ITEMSIZE[dtype]
    floats = (tokens + 2) * features + tokens * (_BLOCK_PITCH + 3)
    return rows + values + operands + scores + output + 4 * floats + _POINTERS


def fits(device: Device, terms: Terms, memory: Array) -> bool:
    """Return True if the kernel can compute terms with a memory of some dtype.

    Parameters
    ----------
    device : Device
        Where the arrays are.
    terms : Terms
        Of ``(batch, heads, T, D)``, as `kernels.cuda.layouts.by_head` returns them.
        Each channel has a decay. Either the keys erase, or nothing does, there is no
        beta, and tokens may read early. Rows are copied in units of 16 bytes.
    memory : array (..., K, V)
        Before the first token.
    """
    if terms.log_decay is None or terms.log_decay.shape[-1] == 1:
        return False
    if terms.erase is None:
        known = terms.beta is None
    else:
        early = terms.early_erase or terms.early_read
        known = terms.erase is terms.key and not early
    return known and rows_fit(tile_shape, device, terms, memory)


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
    erases = terms.erase is not None
    return launch(
        "chunk_gla",
        [erases, terms.early_read],
        shape or shape_of(tile_shape, device, terms),
        partial(shared_bytes, erases=erases),
        *(device, terms, initial, output, final),
        scale=scale,
    )
