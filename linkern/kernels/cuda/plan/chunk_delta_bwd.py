"""Planner of `chunk_delta_bwd.cu`: gradients of the (gated) delta rule."""

from typing import Any, NamedTuple

import numpy as np

from linkern.array import dtype_name
from linkern.core.recurrence import Terms
from linkern.kernels.cuda.launch import Array, Device, Launch
from linkern.kernels.cuda.layouts import (
    gates,
    instance,
    record,
    rows,
    rows_or_null,
    sizes,
)
from linkern.kernels.cuda.plan import chunk_delta
from linkern.kernels.cuda.plan.by_chunks import (
    COMPUTED,
    IO,
    launch,
    shape_of,
)
from linkern.kernels.cuda.plan.chunk_fwd import rows_are_aligned
from linkern.kernels.cuda.plan.tiles import TileShape, padded_size

__all__ = [
    "DeltaGradients",
    "fits",
    "grad_shape",
    "plan",
    "shared_bytes",
    "tile_shape",
]

FILE = "chunk_delta_bwd"
_FEW_FEATURES = 64
# Of a block that computes the gradients of a chunk: warps, at most, and columns of the
# values that it has at once; of few features, and of more.
_CUTS = (8, (32, 16)), (16, (32, 16))
# Bytes of a number as it is copied, if it is then split, and of its parts.
_STAGED = {"float16": 2 + 4, "bfloat16": 2, "float32": 4 + 6}
# As in chunk_tiles.cuh and decay_grad.cuh.
_MASK_PITCH, _DIAGONAL_PITCH = 24, 17


class DeltaGradients(NamedTuple):
    """Gradients of the inputs, arrays in C order that launches write.

    Parameters
    ----------
    query, key, value : array (B, H, T, K), (B, H, T, K), (B, H, T, V)
        In the dtype of the rows.
    log_decay, beta : array (B, H, T, 1) or None
        In float32; None without these gates.
    """

    query: Array
    key: Array
    value: Array
    log_decay: Array | None
    beta: Array | None


def tile_shape(
    dtype: str,
    features: int,
    values: int,
    shared: int,
    *,
    heads: int,
    multiprocessors: int,
) -> TileShape | None:
    """Return the tile shape of the two recurrences; None if no kernel fits.

    That of `chunk_delta`, but blocks have many columns of few features only: threads of
    others have too few registers for the reverse recurrence.
    """
    wide = padded_size(features) <= _FEW_FEATURES
    return chunk_delta.tile_shape(
        *(dtype, features, values, shared),
        heads=heads if wide else 1,
        multiprocessors=multiprocessors,
    )


def grad_shape(
    dtype: str, features: int, values: int, shared: int, tokens: int
) -> TileShape | None:
    """Return the tile shape of the launch for chunks of so many tokens; None for none.

    Its columns are those of a panel: a block goes through all of them.
    """
    features, tiles = padded_size(features), tokens // 16
    warps, panels = _CUTS[features > _FEW_FEATURES]
    slices = min(warps // tiles, features // 16)
    for columns in panels:
        panel = min(columns, padded_size(values))
        shape = TileShape(features, panel, tokens, tiles * slices)
        if shared_bytes(dtype, shape) <= shared:
            return shape
    return None


def shared_bytes(dtype: str, shape: TileShape) -> int:
    """Return the size of the struct ``DeltaGradStorage``."""
    features, columns, tokens, warps = shape
    tiles = tokens // 16
    slices = warps // tiles
    rows_bytes = 2 * tokens * (features + columns) * _STAGED[dtype]
    panels = 2 * columns * (tokens + features) * (4 + COMPUTED[dtype])
    scores = 2 * tokens**2 * COMPUTED[dtype]
    decays = tokens * (_MASK_PITCH + 2) + tiles
    decay_grad = tokens * (2 * tiles + _DIAGONAL_PITCH + 1 + slices) + warps
    floats = decays + decay_grad + tokens
    floats += floats % 2  # sums of rows are pairs
    size = rows_bytes + panels + scores + 4 * (floats + 2 * slices * tokens)
    return -(-size // 16) * 16


def fits(device: Device, terms: Terms, memory: Array) -> bool:
    """Return True if the kernels can compute the gradients of terms.

    The arguments are those of `kernels.cuda.plan.chunk_delta.fits`.
    """
    if not chunk_delta.fits(device, terms, memory):
        return False
    shape = shape_of(tile_shape, device, terms)
    assert shape is not None
    return _grad_shape(device, terms, shape.tokens) is not None


def _grad_shape(device: Device, terms: Terms, tokens: int) -> TileShape | None:
    return grad_shape(
        dtype_name(terms.query.dtype),
        *(terms.query.shape[-1], terms.value.shape[-1], device.shared, tokens),
    )


def plan(
    device: Device,
    terms: Terms,
    initial: Array | None,
    output_grad: Array,
    final_grad: Array | None,
    gradients: DeltaGradients,
    *,
    scale: float = 1.0,
) -> tuple[list[Launch], Array]:
    """Plan all gradients.

    Parameters
    ----------
    device : Device
        Allocates workspace: two states for each chunk, and two rows of float32 of the
        values for each token.
    terms : Terms
        Those that `fits`.
    initial : array (..., K, V) or None
        Memory before the first token, in C order; None for zeros.
    output_grad : array (B, H, T, V)
        Gradient of the output, in the dtype of the rows.
    final_grad : array (..., K, V) or None
        Gradient of the memory after the last token, in C order; None for zeros.
    gradients : DeltaGradients
        Written.
    scale : float
        Factor on the read-out.

    Returns
    -------
    launches : list of Launch
        In the order in which to launch them.
    initial_grad : array (B, H, K, V)
        Gradient of the memory before the first token, which they write.
    """
    if not rows_are_aligned(device, output_grad):
        output_grad = output_grad.copy(order="C")
    batch, heads, tokens, features = terms.query.shape
    values = terms.value.shape[-1]
    shape = shape_of(tile_shape, device, terms)
    assert shape is not None
    edges = -(-tokens // shape.tokens) + 1
    states, state_grads = (
        device.empty((batch, heads, edges, features, values), np.float32)
        for _ in range(2)
    )
    written, written_grads = (
        device.empty((batch, heads, tokens, values), np.float32) for _ in range(2)
    )

    def one_pass(
        kernel: str, terms: Terms, first: Array | None, kept: Array, wrote: Array
    ) -> Launch:
        return launch(
            FILE,
            [terms.log_decay is not None],
            shape,
            chunk_delta.shared_bytes,
            *(device, terms, first, gradients.value, kept),
            scale=scale,
            kernel=kernel,
            fields={"states": device.address(kept), "written": device.address(wrote)},
        )._replace(holds=(kept, wrote))

    launches = [
        one_pass("chunk_delta_states", terms, initial, states, written),
        one_pass(
            "chunk_delta_reverse",
            terms._replace(value=output_grad),
            *(final_grad, state_grads, written_grads),
        ),
    ]
    if tokens:
        kept = states, state_grads, written, written_grads
        one_chunk = _grad_shape(device, terms, shape.tokens)
        assert one_chunk is not None
        launches.append(
            _grads(device, terms, output_grad, kept, gradients, one_chunk, scale)
        )
    return launches, state_grads[:, :, 0]


def _grads(
    device: Device,
    terms: Terms,
    output_grad: Array,
    kept: tuple[Array, ...],
    gradients: DeltaGradients,
    shape: TileShape,
    scale: float,
) -> Launch:
    """Return the launch of a block for each chunk of each head."""
    batch, heads, tokens, features = terms.query.shape
    dtype = dtype_name(terms.query.dtype)
    states, state_grads, written, written_grads = map(device.address, kept)
    parameters: Any = record(
        query=rows(device, terms.query),
        key=rows(device, terms.key),
        value=rows(device, terms.value),
        output_grad=rows(device, output_grad),
        log_decay=gates(device, terms.log_decay, np.float32),
        beta=gates(device, terms.beta, np.float32),
        states=states,
        state_grads=state_grads,
        written=written,
        written_grads=written_grads,
        query_grad=rows(device, gradients.query),
        key_grad=rows(device, gradients.key),
        log_decay_grad=rows_or_null(device, gradients.log_decay),
        beta_grad=rows_or_null(device, gradients.beta),
        sizes=sizes(heads, tokens, features, terms.value.shape[-1]),
        scale=np.float32(scale),
    )
    tile = instance("TileShape", IO[dtype], *shape)
    return Launch(
        file=FILE,
        kernel=instance("chunk_delta_grads", tile, terms.log_decay is not None),
        blocks=batch * heads * -(-tokens // shape.tokens),
        threads=32 * shape.warps,
        shared=shared_bytes(dtype, shape),
        parameters=parameters,
        holds=kept,
    )
