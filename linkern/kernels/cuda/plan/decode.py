"""Planner of `decode.cu`: one token, with a state that is updated in place."""

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

__all__ = ["DecodeState", "plan", "zeros"]

# As in decode.cu.
_THREADS, _COLUMNS = 128, 32
_HELD = (2, 4, 8, 16)  # rows of a state that a thread can hold at once


class DecodeState(NamedTuple):
    """A state in the layout of the kernel.

    Parameters
    ----------
    memory : array (B H, K, pitch)
        Rows are padded to multiples of 16 bytes; the padding is never read.
    normalizer : array (B H, slices, K) or None
        One copy for each block of threads, all equal, so that no block waits for
        another.
    values : int
        ``V``: columns of the memory without padding.
    """

    memory: Array
    normalizer: Array | None
    values: int

    def fill(self, memory: Array, normalizer: Array | None) -> None:
        """Copy the entries of a state (..., K, V), (..., K)."""
        heads, features, _ = self.memory.shape
        self.memory[..., : self.values] = memory.reshape(heads, features, self.values)
        if self.normalizer is not None and normalizer is not None:
            self.normalizer[...] = normalizer.reshape(heads, 1, features)

    def copy(self) -> "DecodeState":
        """Return a copy in new arrays."""
        normalizer = None if self.normalizer is None else self.normalizer.copy()
        return DecodeState(self.memory.copy(), normalizer, self.values)


def zeros(
    device: Device,
    heads: int,
    features: int,
    values: int,
    dtype: np.dtype[Any],
    *,
    normalize: bool,
) -> DecodeState:
    """Return the state before the first token."""
    vector = 16 // dtype.itemsize
    memory = device.empty((heads, features, -(-values // vector) * vector), dtype)
    memory[...] = 0
    if not normalize:
        return DecodeState(memory, None, values)
    normalizer = device.empty((heads, _slices(values), features), dtype)
    normalizer[...] = 0
    return DecodeState(memory, normalizer, values)


def plan(
    device: Device,
    state: DecodeState,
    query: Array,
    key: Array,
    value: Array,
    output: Array,
    log_decay: Array | None = None,
    *,
    feature_map: str,
    scale: float | None,
) -> Launch:
    """Plan one step; the launch may be repeated after the arrays have changed.

    Parameters
    ----------
    device : Device
        Where the arrays are.
    state : DecodeState
        Updated in place.
    query, key, value : array (..., K), (..., K), (..., V)
        One token, of one dtype; the state is in the dtype it is computed in.
    output : array (..., V)
        Written, in the dtype of the query; it may be `value`.
    log_decay : array (...,) or None
        One number for each head, in the dtype of the state.
    feature_map : str
        Its name in common.cuh.
    scale : float or None
        Factor on an output that is not divided by its weights; None for 1.

    Raises
    ------
    ValueError
        If an array has a layout that the kernel cannot read without a copy.
    """
    heads, features, pitch = state.memory.shape
    real, vector = real_of(query), 16 // state.memory.dtype.itemsize
    rows_at_once = _THREADS * vector // _COLUMNS
    held = next((n for n in _HELD if n * rows_at_once >= features), _HELD[-1])
    flags = (log_decay is not None, state.normalizer is not None)
    io = IO[dtype_name(query.dtype)]
    shared = 2 * held * rows_at_once + _THREADS // 32 * (_COLUMNS + 1)
    decays = np.zeros((), ROWS)
    if log_decay is not None:
        decays = _token(device, "log_decay", log_decay[..., None])
    return Launch(
        file="decode",
        kernel=instance("decode", io, real, feature_map, *flags, held),
        blocks=heads * _slices(state.values),
        threads=_THREADS,
        shared=shared * state.memory.dtype.itemsize,
        parameters=record(
            query=_token(device, "query", query),
            key=_token(device, "key", key),
            value=_token(device, "value", value),
            log_decay=decays,
            output=_token(device, "out", output),
            state=device.address(state.memory),
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
    """Return one token as the struct ``Rows``; refuse to copy it."""
    row = by_head(x[..., None, :])
    if device.address(row) != device.address(x):
        msg = (
            f"`{name}` must have entries side by side on its last axis and the other "
            f"axes at two strides at most, got {x.strides}; copy it first."
        )
        raise ValueError(msg)
    return rows(device, row)
