"""One token of linear attention on a GPU, with a state that is updated in place."""

from typing import Any, NamedTuple

import numpy as np

from linkern.array import dtype_name
from linkern.kernels.cuda.launch import Array, Device, Launch
from linkern.kernels.cuda.layouts import (
    IO,
    ROWS,
    address_or_null,
    by_head,
    instance,
    real_of,
    record,
    rows,
    sizes,
)

__all__ = ["Held", "plan", "zeros"]

# As in decode.cu.
_THREADS, _COLUMNS = 128, 32
_HELD = (2, 4, 8, 16)  # rows that a thread can hold at once


class Held(NamedTuple):
    """A state as the kernel has it: with room to spare.

    Parameters
    ----------
    memory : array (B H, K, pitch)
        The columns behind the values are there so that rows begin at multiples of 16
        bytes. Whatever they hold, nothing reads.
    normalizer : array (B H, slices, K) or None
        The same for all slices. Blocks of threads share no number, so that none has to
        wait for another.
    values : int
        ``V``: columns of the memory that count.
    """

    memory: Array
    normalizer: Array | None
    values: int

    def fill(self, memory: Array, normalizer: Array | None) -> None:
        """Take over the numbers of a state (..., K, V), (..., K)."""
        heads, features, _ = self.memory.shape
        self.memory[..., : self.values] = memory.reshape(heads, features, self.values)
        if self.normalizer is not None and normalizer is not None:
            self.normalizer[...] = normalizer.reshape(heads, 1, features)

    def copy(self) -> "Held":
        """Return the same in other arrays."""
        normalizer = None if self.normalizer is None else self.normalizer.copy()
        return Held(self.memory.copy(), normalizer, self.values)


def zeros(
    device: Device,
    heads: int,
    features: int,
    values: int,
    dtype: np.dtype[Any],
    *,
    normalize: bool,
) -> Held:
    """Return the state before the first token."""
    wide = 16 // dtype.itemsize
    memory = device.empty((heads, features, -(-values // wide) * wide), dtype)
    memory[...] = 0
    if not normalize:
        return Held(memory, None, values)
    normalizer = device.empty((heads, _slices(values), features), dtype)
    normalizer[...] = 0
    return Held(memory, normalizer, values)


def plan(
    device: Device,
    state: Held,
    query: Array,
    key: Array,
    value: Array,
    output: Array,
    log_decay: Array | None = None,
    *,
    feature_map: str,
    scale: float | None,
) -> Launch:
    """Plan one step: arrays may be written anew, and the launch be taken again.

    Parameters
    ----------
    device : Device
        Where the arrays are.
    state : Held
        Updated in place.
    query, key, value : array (..., K), (..., K), (..., V)
        One token, of one dtype; the state is in the dtype it is computed in.
    output : array (..., V)
        Where it is written, in the dtype of the query; it may be `value`.
    log_decay : array (...,) or None
        One number for each head, in the dtype of the state.
    feature_map : str
        Its name in common.cuh.
    scale : float or None
        Factor on an output that is not divided by its weights.

    Raises
    ------
    ValueError
        If a kernel would need a copy of an array.
    """
    heads, features, pitch = state.memory.shape
    real, wide = real_of(query), 16 // state.memory.dtype.itemsize
    rows_at_once = _THREADS * wide // _COLUMNS
    held = next((n for n in _HELD if n * rows_at_once >= features), _HELD[-1])
    flags = (log_decay is not None, state.normalizer is not None)
    io = IO[dtype_name(query.dtype)]
    shared = 2 * held * rows_at_once + _THREADS // 32 * (_COLUMNS + 1)
    decays = np.zeros((), ROWS)
    if log_decay is not None:
        decays = _token(device, "log_decay", log_decay[..., None])
    return Launch(
        file="decode",
        kernel=instance("decode_step", io, real, feature_map, *flags, held),
        blocks=heads * _slices(state.values),
        threads=_THREADS,
        shared=shared * state.memory.dtype.itemsize,
        parameters=record(
            query=_token(device, "query", query),
            key=_token(device, "key", key),
            value=_token(device, "value", value),
            log_decay=decays,
            output=_token(device, "out", output),
            memory=device.address(state.memory),
            normalizer=address_or_null(device, state.normalizer),
            sizes=sizes(
                query.shape[-2] if query.ndim > 1 else 1, 1, features, state.values
            ),
            pitch=np.int32(pitch),
            scale=np.asarray(1.0 if scale is None else scale, state.memory.dtype),
        ),
    )


def _slices(values: int) -> int:
    return max(1, -(-values // _COLUMNS))


def _token(device: Device, name: str, x: Array) -> Any:
    """Return one token as the struct ``Rows``, as it lies."""
    found = by_head(x[..., None, :])
    if device.address(found) != device.address(x):
        msg = (
            f"`{name}` must have entries side by side on its last axis and the other "
            f"axes at two strides at most, got {x.strides}; copy it first."
        )
        raise ValueError(msg)
    return rows(device, found)
