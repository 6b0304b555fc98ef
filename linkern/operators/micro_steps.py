"""Tokens of several rows of the recurrence: gates and queries at one row, else 0."""

from linkern.array import concat, reshape, zeros
from linkern.typing import Array

__all__ = ["at_step"]


def at_step(x: Array, steps: int, *, last: bool) -> Array:
    """Spread tokens ``(..., T, D)`` over ``n T`` steps, zero at all steps but one."""
    *lead, length, size = x.shape
    rest = zeros((*lead, length, steps - 1, size), like=x)
    current = x[..., None, :]
    parts = [rest, current] if last else [current, rest]
    return reshape(concat(parts, axis=-2), (*lead, length * steps, size))
