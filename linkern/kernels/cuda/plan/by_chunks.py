"""Parts that the planners of `chunk_delta`, its gradients and `chunk_gla` share."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from linkern.array import dtype_name
from linkern.core.recurrence import Terms
from linkern.kernels.cuda.launch import Array, Device, Launch
from linkern.kernels.cuda.layouts import instance, record
from linkern.kernels.cuda.plan.chunk_fwd import rows_are_aligned
from linkern.kernels.cuda.plan.recurrent import parameters
from linkern.kernels.cuda.plan.tiles import TileShape

__all__ = [
    "BUFFERS",
    "COMPUTED",
    "IO",
    "ITEMSIZE",
    "TileShapes",
    "launch",
    "rows_fit",
    "shape_of",
]

# By their names in mma.cuh.
IO = {"float16": "f16_split", "bfloat16": "bf16", "float32": "float"}
# Bytes of a number as it is copied, in all buffers of rows: as it is copied and in
# parts, and of the parts of a number that was computed.
ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4}
BUFFERS = {"float16": 2 + 3 * 4, "bfloat16": 3 * 2, "float32": 4 + 3 * 6}
COMPUTED = {"float16": 4, "bfloat16": 4, "float32": 6}


class TileShapes(Protocol):
    """The function `tile_shape` of a planner."""

    def __call__(
        self,
        dtype: str,
        features: int,
        values: int,
        shared: int,
        *,
        heads: int,
        multiprocessors: int,
    ) -> TileShape | None:
        """Return the tile shape of a call; None if no kernel fits."""


def shape_of(tile_shape: TileShapes, device: Device, terms: Terms) -> TileShape | None:
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


def rows_fit(
    tile_shape: TileShapes, device: Device, terms: Terms, memory: Array
) -> bool:
    """Return True if a memory and rows, copied in units, have a tile shape."""
    if 0 in memory.shape[-2:] or memory.dtype != np.float32:
        return False
    rows = (terms.query, terms.key, terms.value)
    return shape_of(tile_shape, device, terms) is not None and all(
        rows_are_aligned(device, x) for x in rows
    )


def launch(
    file: str,
    arguments: Sequence[object],
    shape: TileShape | None,
    shared: Any,
    device: Device,
    terms: Terms,
    initial: Array | None,
    output: Array,
    final: Array,
    *,
    scale: float,
    kernel: str | None = None,
    fields: Mapping[str, Any] | None = None,
) -> Launch:
    """Return the launch of a kernel.

    Parameters
    ----------
    file : str
        Name of the file.
    arguments : sequence
        Template arguments behind the tile shape.
    shape : TileShape or None
        None if none fits.
    shared : callable
        Returns the shared memory of a block for a dtype and a tile shape.
    device, terms, initial, output, final, scale
        As in `kernels.cuda.plan.recurrent.plan`.
    kernel : str, optional
        Name of the kernel. Default: that of the file.
    fields : mapping, optional
        Parameters behind those of ``RecurrentParams``.

    Raises
    ------
    ValueError
        If no tile shape fits.
    """
    batch, heads, _, features = terms.query.shape
    values, dtype = terms.value.shape[-1], dtype_name(terms.query.dtype)
    if shape is None:
        msg = f"no tile of rows of {features} features fits {device.shared} bytes"
        raise ValueError(msg)
    tile = instance("TileShape", IO[dtype], *shape)
    common = parameters(device, terms, initial, output, final, scale=scale)
    if fields:
        names = common.dtype.names or ()
        common = record(**{name: common[name] for name in names}, **fields)
    return Launch(
        file=file,
        kernel=instance(kernel or file, tile, *arguments),
        blocks=batch * heads * -(-values // shape.columns),
        threads=32 * shape.warps,
        shared=shared(dtype, shape),
        parameters=common,
    )
