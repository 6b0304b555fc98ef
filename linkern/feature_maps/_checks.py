"""Argument checks of feature maps and similarities."""

import math
import numbers
from typing import Any

from linkern import validate
from linkern.typing import Array

__all__ = ["number", "rows"]


def number(name: str, value: Any, *, zero: bool = False) -> float:
    """Check a positive, finite real number, or one that may be zero as well."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        msg = f"`{name}` must be a real number, got {value!r}."
        raise TypeError(msg)
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        rule = "zero or positive" if zero else "positive"
        msg = f"`{name}` must be {rule} and finite, got {value!r}."
        raise ValueError(msg)
    return float(value)


def rows(x: Any, *, axes: int = 1, size: int | None = None) -> Array:
    """Return queries or keys in compute precision, after checking their axes."""
    wide = validate.widened("x", x)
    if wide.ndim < axes:
        shape = "(..., T, K)" if axes == 2 else "(..., K)"
        msg = f"`x` must have shape {shape}, got {tuple(wide.shape)}."
        raise ValueError(msg)
    if size is not None and wide.shape[-1] != size:
        msg = (
            f"`x` must have the key dimension (last axis) that this feature map was "
            f"made for, {size}, got {wide.shape[-1]}."
        )
        raise ValueError(msg)
    return wide
