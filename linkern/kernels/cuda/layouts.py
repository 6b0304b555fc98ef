"""Arrays as kernels see them: pointers and strides, dtypes by their names in C."""

from math import prod
from typing import Any

import numpy as np

from linkern.array import dtype_name
from linkern.kernels.cuda.launch import Array, Device

__all__ = [
    "IO",
    "ROWS",
    "address_or_null",
    "by_head",
    "in_order",
    "instance",
    "real_of",
    "record",
    "rows",
    "rows_or_null",
    "sizes",
]

# The struct Rows of common.cuh.
ROWS = np.dtype([("at", "u8"), ("batch", "i8"), ("head", "i8"), ("token", "i8")])
# What numbers are called in a kernel.
IO = {"float16": "f16", "bfloat16": "bf16", "float32": "float", "float64": "double"}


def instance(kernel: str, *arguments: object) -> str:
    """Return the name of a kernel with the arguments of its template, as in C."""
    spelled = (str(x).lower() if isinstance(x, bool) else str(x) for x in arguments)
    return f"{kernel}<{', '.join(spelled)}>"


def real_of(x: Array) -> str:
    """Return the name of the dtype that numbers of `x` are computed in."""
    return "double" if dtype_name(x.dtype) == "float64" else "float"


def by_head(x: Array) -> Array:
    """Return rows as ``(batch, heads, T, D)`` with entries of a row side by side.

    Without copying, if the strides of the leading axes make two, whatever they are.
    """
    length, size = x.shape[-2:]
    if size > 1 and x.strides[-1] != x.itemsize:
        x = x.copy(order="C")
    lead = x.shape[:-2]
    if len(lead) < 2:
        return x[(None,) * (2 - len(lead))]
    # All but the last axis become one; where that needs a copy, it is made.
    return x.reshape(prod(lead[:-1]), lead[-1], length, size)


def in_order(x: Array) -> Array:
    """Return an array in C order: itself, if it is."""
    return x if x.flags.c_contiguous else x.copy(order="C")


def rows(device: Device, x: Array) -> Any:
    """Return an array of `by_head` as the struct ``Rows``."""
    found = np.zeros((), ROWS)
    found["at"] = device.address(x)
    for name, stride in zip(("batch", "head", "token"), x.strides, strict=False):
        found[name] = stride // x.itemsize
    return found


def rows_or_null(device: Device, x: Array | None) -> Any:
    """Return the struct ``Rows``, all zeros for None."""
    return np.zeros((), ROWS) if x is None else rows(device, x)


def address_or_null(device: Device, x: Array | None) -> int:
    """Return a pointer, null for None."""
    return 0 if x is None else device.address(x)


def record(**fields: Any) -> Any:
    """Return a struct in C of the given fields, in order.

    A field is a record of its own, a NumPy scalar, or an integer for a pointer.
    """
    items = {
        name: np.asarray(x, np.uint64 if isinstance(x, int) else None)
        for name, x in fields.items()
    }
    kind = np.dtype([(name, x.dtype) for name, x in items.items()], align=True)
    found = np.zeros((), kind)
    for name, x in items.items():
        found[name] = x
    return found


def sizes(heads: int, tokens: int, features: int, values: int) -> Any:
    """Return the struct ``Sizes`` of common.cuh."""
    return record(
        heads=np.int64(heads),
        tokens=np.int64(tokens),
        features=np.int32(features),
        values=np.int32(values),
    )
