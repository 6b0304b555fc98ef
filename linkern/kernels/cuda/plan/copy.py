"""Planner of `copy.cu`: an array is copied to another."""

import numpy as np

from linkern.kernels.cuda.launch import Array, Device, Launch
from linkern.kernels.cuda.layouts import record

__all__ = ["UNIT", "plan"]

UNIT = 16  # bytes that a thread loads at once
# As in copy.cu.
_THREADS, _UNITS = 256, 4


def plan(device: Device, source: Array, target: Array) -> Launch:
    """Plan a copy between arrays in C order, of as many bytes: a multiple of `UNIT`."""
    if source.nbytes != target.nbytes or source.nbytes % UNIT:
        msg = (
            f"arrays must have the same number of bytes, a multiple of {UNIT}, got "
            f"{source.nbytes} and {target.nbytes}"
        )
        raise ValueError(msg)
    units = source.nbytes // UNIT
    return Launch(
        file="copy",
        kernel="copy",
        blocks=max(1, -(-units // (_THREADS * _UNITS))),
        threads=_THREADS,
        shared=0,
        parameters=record(
            source=device.address(source),
            target=device.address(target),
            units=np.int64(units),
        ),
        holds=(source, target),
    )
