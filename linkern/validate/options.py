"""Checks of options: numbers, switches, names and offsets."""

import math
import numbers
import operator
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from linkern.array import dtype_name, is_array

__all__ = [
    "chunk_size",
    "dimension",
    "dimensions",
    "flag",
    "form",
    "offsets",
    "positive_integer",
    "scale",
]


def form(name: Any, known: tuple[str, ...]) -> str:
    """Check the name of a form."""
    if name not in known:
        quoted = ", ".join(f'"{form}"' for form in known)
        msg = f"`form` must be one of {quoted}, got {name!r}."
        raise ValueError(msg)
    return str(name)


def chunk_size(size: Any, form: str) -> int | None:
    """Check that a chunk size is a positive integer and that the form has chunks."""
    if size is None:
        return None
    integer = _as_index(size)
    if integer is None or integer < 1:
        msg = f"`chunk_size` must be a positive integer, got {size!r}."
        raise (ValueError if isinstance(size, numbers.Real) else TypeError)(msg)
    if form in ("recurrent", "parallel"):
        msg = f'`chunk_size` applies to form "chunkwise" only, got form "{form}".'
        raise ValueError(msg)
    return integer


def dimension(name: str, size: Any) -> int:
    """Check the size of an axis."""
    integer = _as_index(size)
    if integer is None:
        msg = f"`{name}` must be an integer, got {size!r}."
        raise TypeError(msg)
    if integer < 0:
        msg = f"`{name}` must not be negative, got {size}."
        raise ValueError(msg)
    return integer


def dimensions(name: str, sizes: Any) -> tuple[int, ...]:
    """Check the sizes of several axes."""
    if isinstance(sizes, str) or not isinstance(sizes, Iterable):
        msg = f"`{name}` must be a tuple of integers, got {sizes!r}."
        raise TypeError(msg)
    return tuple(dimension(name, size) for size in sizes)


def _as_index(size: Any) -> int | None:
    if isinstance(size, bool):
        return None
    try:
        return operator.index(size)
    except TypeError:
        return None


def positive_integer(name: str, size: Any) -> int:
    """Check a positive integer."""
    integer = dimension(name, size)
    if integer == 0:
        msg = f"`{name}` must be a positive integer, got 0."
        raise ValueError(msg)
    return integer


def flag(name: str, value: Any) -> bool:
    """Check a boolean; other values are refused, since None or 0 hide mistakes."""
    if not isinstance(value, bool):
        msg = f"`{name}` must be True or False, got {value!r}."
        raise TypeError(msg)
    return value


def scale(value: Any) -> float | None:
    """Check the factor on the scores."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        msg = f"`scale` must be a real number or None, got {value!r}."
        raise TypeError(msg)
    if not math.isfinite(value) or value == 0:
        msg = f"`scale` must be finite and not zero, got {value!r}."
        raise ValueError(msg)
    return float(value)


def offsets(cu_seqlens: Any, length: int) -> tuple[int, ...]:
    """Return the offsets of packed sequences as integers, after checking them."""
    result = _integers(cu_seqlens)
    if not result or result[0] != 0:
        msg = f"`cu_seqlens` must begin with 0, got {list(result)}."
        raise ValueError(msg)
    if any(b < a for a, b in pairwise(result)):
        msg = f"`cu_seqlens` must not decrease, got {list(result)}."
        raise ValueError(msg)
    if result[-1] > length:
        msg = (
            f"`cu_seqlens` must not exceed the length, {length}, got {list(result)}; "
            "the length is that of the last axis but one."
        )
        raise ValueError(msg)
    return result


def _integers(cu_seqlens: Any) -> tuple[int, ...]:
    """Return offsets from a sequence, or from an array of any library and device."""
    if is_array(cu_seqlens):
        _one_axis_of_integers(cu_seqlens)
    try:
        result = [_as_index(x) for x in _listed(cu_seqlens)]
    except (TypeError, RuntimeError):  # no sequence, or an array without values
        result = [None]
    known = tuple(x for x in result if x is not None)
    if len(known) < len(result):
        msg = (
            "`cu_seqlens` must be a sequence of integers that are known during the "
            f"call, such as [0, 3, 8], got {cu_seqlens!r}."
        )
        raise TypeError(msg)
    return known


def _listed(cu_seqlens: Any) -> Any:
    if hasattr(cu_seqlens, "tolist"):  # one transfer, from whatever device it is on
        return cu_seqlens.tolist()
    if is_array(cu_seqlens):
        return [cu_seqlens[i] for i in range(cu_seqlens.shape[0])]
    return cu_seqlens


def _one_axis_of_integers(cu_seqlens: Any) -> None:
    """Check the dtype and the axes of an array of offsets."""
    dtype = dtype_name(cu_seqlens.dtype)
    if not dtype.startswith(("int", "uint")):
        msg = f"`cu_seqlens` must have an integer dtype, got {dtype}; convert it first."
        raise TypeError(msg)
    if cu_seqlens.ndim != 1:
        msg = f"`cu_seqlens` must have one axis, got {tuple(cu_seqlens.shape)}."
        raise ValueError(msg)
