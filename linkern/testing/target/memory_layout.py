"""Memory layouts of inputs that are not contiguous.

Each style is a NumPy view into a larger array whose other entries are NaN. A kernel
that reads past the end of its input, or takes strides for granted, computes with them;
one that writes there is seen.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["GUARD", "STYLES", "Placed", "byte_offset", "place", "with_room"]

# Entries around an input: more than one tile of the widest kernels, so that whatever
# runs past the end of the last tile lands here.
GUARD = 4096


@dataclass(frozen=True)
class Placed:
    """A view for the target, and the array that holds it.

    Parameters
    ----------
    view : array
        Input of the target.
    base : array
        The memory that holds it.
    before : array
        A copy of `base` as it was.
    """

    view: NDArray[Any]
    base: NDArray[Any]
    before: NDArray[Any]

    @property
    def disturbed(self) -> bool:
        """True if the memory has changed, in the array or around it."""
        return self.base.tobytes() != self.before.tobytes()


def _offset(x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    # An odd offset: aligned for one number, not for a vector of them.
    base = _poisoned((x.size + 2 * GUARD + 3,), x.dtype)
    view = base[GUARD + 3 : GUARD + 3 + x.size].reshape(x.shape)
    return view, base


def _fortran(x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    base = np.empty(x.shape, x.dtype, order="F")
    return base, base


def _transposed(x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Swap the two axes before the last in memory: ``bthd`` seen as ``bhtd``."""
    if x.ndim < 3:
        return _fortran(x)
    base = np.empty(np.swapaxes(x, -3, -2).shape, x.dtype)
    return np.swapaxes(base, -3, -2), base


def _sliced(x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Use every second entry of the last axis, in rows of a larger array."""
    if x.ndim < 2:
        base = _poisoned((2 * x.size + 1,), x.dtype)
        return base[: 2 * x.size : 2], base
    base = _poisoned((*x.shape[:-2], x.shape[-2] + 5, 2 * x.shape[-1] + 1), x.dtype)
    return base[..., 2 : 2 + x.shape[-2], : 2 * x.shape[-1] : 2], base


def _padded(x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Use the first tokens of a longer buffer, the way caches are passed."""
    if x.ndim < 2:
        return _offset(x)
    base = _poisoned((*x.shape[:-2], x.shape[-2] + 64, x.shape[-1]), x.dtype)
    return base[..., : x.shape[-2], :], base


def _reversed(x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    base = np.empty(x.shape, x.dtype)
    backwards = (slice(None, None, -1),) * min(x.ndim, 2)
    return base[(slice(None),) * (x.ndim - len(backwards)) + backwards], base


def _broadcast(x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Store equal entries along an axis once, with a stride of zero."""
    first = x
    for axis in range(x.ndim - 1):
        start = first[(slice(None),) * axis + (slice(1),)]
        if start.size and (first == start).all():
            first = start
    base = first.copy()
    return np.broadcast_to(base, x.shape), base


STYLES: dict[str, Callable[[NDArray[Any]], tuple[NDArray[Any], NDArray[Any]]]] = {
    "offset": _offset,
    "fortran": _fortran,
    "transposed": _transposed,
    "sliced": _sliced,
    "padded": _padded,
    "reversed": _reversed,
    "broadcast": _broadcast,
}


def place(x: NDArray[Any], style: str) -> Placed:
    """Put an array into memory in one of the `STYLES`.

    Examples
    --------
    >>> placed = place(np.ones((2, 3)), "sliced")
    >>> bool((placed.view == 1).all()), placed.view.flags.contiguous
    (True, False)
    """
    view, base = STYLES[style](x)
    if view.flags.writeable:
        view[...] = x
    return Placed(view, base, base.copy())


def byte_offset(view: NDArray[Any], base: NDArray[Any]) -> int:
    """Return the number of bytes from the start of an array to that of its view."""
    starts = (x.__array_interface__["data"][0] for x in (view, base))
    return int(next(starts) - next(starts))


def with_room(x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return a contiguous copy, and the array that holds it and unused memory around.

    A target that writes past the end of an input would otherwise damage the heap of its
    process, and fail in whatever runs next.

    Examples
    --------
    >>> view, base = with_room(np.arange(3.0))
    >>> view, base.size - 2 * GUARD
    (array([0., 1., 2.]), 3)
    """
    base = np.zeros(x.size + 2 * GUARD, x.dtype)
    view = base[GUARD : GUARD + x.size].reshape(x.shape)
    view[...] = x
    return view, base


def _poisoned(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    return np.full(shape, np.nan, dtype)
