"""The plain kernels of what is only added to the memory, as launches."""

from typing import Any, NamedTuple

import numpy as np

from linkern.array import dtype_name
from linkern.kernels.cuda.launch import Array, Device, Launch
from linkern.kernels.cuda.layouts import (
    IO,
    address_or_null,
    instance,
    real_of,
    record,
    rows,
    sizes,
)

__all__ = ["Call", "forward"]

# As in additive.cu.
_CHUNK, _PANEL, _COLUMNS, _THREADS = 16, 32, 32, 128


class Call(NamedTuple):
    """What is to be computed: arrays of ``(batch, heads, T, D)``, and in which way.

    Parameters
    ----------
    query, key, value : array (B, H, T, K), (B, H, T, K), (B, H, T, V)
        Of one dtype; see `linkern.kernels.cuda.layouts.by_head`.
    log_decay : array (B, H, T, 1) or None
        In the dtype of the computation.
    memory, normalizer : array (B, H, K, V), (B, H, K) or None
        Before the first token, in C order; None for zeros.
    feature_map : str
        Its name in common.cuh.
    normalize : bool
        Whether rows are divided by their weights.
    scale : float
        Factor on rows that are not divided.
    """

    query: Array
    key: Array
    value: Array
    log_decay: Array | None
    memory: Array | None
    normalizer: Array | None
    feature_map: str
    normalize: bool
    scale: float

    @property
    def heads(self) -> int:
        """How many there are in all batches together."""
        batch, heads = self.query.shape[:2]
        return int(batch * heads)

    @property
    def sizes(self) -> Any:
        """The struct ``Sizes``."""
        _, heads, tokens, features = self.query.shape
        return sizes(heads, tokens, features, self.value.shape[-1])


def forward(
    device: Device, of: Call, output: Array, memory: Array, normalizer: Array | None
) -> Launch:
    """Plan the output and the state after the last token."""
    io, real = IO[dtype_name(of.query.dtype)], real_of(of.query)
    ways = (of.feature_map, of.log_decay is not None, of.normalize)
    return Launch(
        file="additive",
        kernel=instance("additive_forward", io, real, *ways),
        blocks=of.heads * max(1, -(-of.value.shape[-1] // _COLUMNS)),
        threads=_THREADS,
        shared=_shared(of),
        parameters=record(
            query=rows(device, of.query),
            key=rows(device, of.key),
            value=rows(device, of.value),
            log_decay=rows(device, of.query if of.log_decay is None else of.log_decay),
            output=rows(device, output),
            memory_before=address_or_null(device, of.memory),
            normalizer_before=address_or_null(device, of.normalizer),
            memory=device.address(memory),
            normalizer=address_or_null(device, normalizer),
            sizes=of.sizes,
            scale=np.asarray(of.scale, memory.dtype),
        ),
    )


def _shared(of: Call) -> int:
    """Return the size of the struct ``Tiles``, and of the normalizer behind it."""
    chunk, panel, columns = _CHUNK, _PANEL, _COLUMNS
    decays = chunk * (chunk + 1) + 2 * chunk
    tiles = 2 * chunk * (panel + 1) + chunk * columns + panel * columns
    numbers = tiles + chunk * (chunk + 1) + 2 * chunk + decays
    itemsize = 8 if real_of(of.query) == "double" else 4
    features: int = of.query.shape[-1]
    return (numbers + features) * itemsize
