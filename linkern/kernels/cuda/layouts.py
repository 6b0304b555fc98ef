"""Arrays as kernels get them: pointers and strides, dtypes by their names in C."""

from math import prod
from typing import Any

import numpy as np

from linkern.array import dtype_name
from linkern.kernels.cuda.launch import Array, Device

__all__ = [
    "GATES",
    "IO",
    "ROWS",
    "address_or_null",
    "by_head",
    "gates",
    "in_order",
    "instance",
    "present",
    "real_of",
    "record",
    "rows",
    "rows_or_null",
    "sizes",
]

# The struct Rows of common.cuh.
_STRIDES = ("batch_stride", "head_stride", "token_stride")
ROWS = np.dtype([("data", "u8"), *((name, "i8") for name in _STRIDES)])
# The struct GateRows.
GATES = np.dtype([*ROWS.descr, ("narrow", "i8")])
# Dtypes by their names in kernels.
IO = {"float16": "f16", "bfloat16": "bf16", "float32": "float", "float64": "double"}


def instance(template: str, *arguments: object) -> str:
    """Return the name of a template in C with its arguments."""
    spelled = (str(x).lower() if isinstance(x, bool) else str(x) for x in arguments)
    return f"{template}<{', '.join(spelled)}>"


def real_of(x: Array) -> str:
    """Return the name of the dtype in which kernels compute with entries of `x`."""
    return "double" if dtype_name(x.dtype) == "float64" else "float"


def by_head(x: Array) -> Array:
    """Return rows as ``(batch, heads, T, D)`` with contiguous entries of a row.

    Nothing is copied if two strides describe the leading axes, whatever they are.
    """
    length, size = x.shape[-2:]
    if size > 1 and x.strides[-1] != x.itemsize:
        x = x.copy(order="C")
    lead = x.shape[:-2]
    if len(lead) < 2:
        return x[(None,) * (2 - len(lead))]
    # All but the last of the leading axes become one, with a copy if necessary.
    return x.reshape(prod(lead[:-1]), lead[-1], length, size)


def in_order(x: Array) -> Array:
    """Return an array in C order, without a copy if it has it already."""
    return x if x.flags.c_contiguous else x.copy(order="C")


def rows(device: Device, x: Array) -> Any:
    """Return a result of `by_head` as the struct ``Rows``."""
    struct = np.zeros((), ROWS)
    struct["data"] = device.address(x)
    for name, stride in zip(_STRIDES, x.strides, strict=False):
        struct[name] = stride // x.itemsize
    return struct


def rows_or_null(device: Device, x: Array | None) -> Any:
    """Return the struct ``Rows``, zeros for None."""
    return np.zeros((), ROWS) if x is None else rows(device, x)


def gates(device: Device, x: Array | None, wide: Any) -> Any:
    """Return a result of `by_head` as the struct ``GateRows``, zeros for None.

    Kernels widen what is narrower than `wide`, the dtype of the computation.
    """
    struct = np.zeros((), GATES)
    if x is not None:
        filled = rows(device, x)
        for name in ROWS.fields or ():
            struct[name] = filled[name]
        struct["narrow"] = x.dtype != wide
    return struct


def address_or_null(device: Device, x: Array | None) -> int:
    """Return a pointer, null for None."""
    return 0 if x is None else device.address(x)


def present(*arrays: Array | None) -> tuple[Array, ...]:
    """Return the arrays that are not None."""
    return tuple(x for x in arrays if x is not None)


def record(**fields: Any) -> Any:
    """Return a struct in C with these fields, in this order.

    A field is a record, a NumPy scalar, or an integer for a pointer.
    """
    items = {
        name: np.asarray(x, np.uint64 if isinstance(x, int) else None)
        for name, x in fields.items()
    }
    dtype = np.dtype([(name, x.dtype) for name, x in items.items()], align=True)
    struct = np.zeros((), dtype)
    for name, x in items.items():
        struct[name] = x
    return struct


def sizes(heads: int, tokens: int, features: int, values: int) -> Any:
    """Return the struct ``Sizes`` of common.cuh."""
    return record(
        heads=np.int64(heads),
        tokens=np.int64(tokens),
        features=np.int32(features),
        values=np.int32(values),
    )
