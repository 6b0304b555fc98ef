"""Buffers, and a few of them kept between calls.

A call that takes a millisecond would spend as long again on asking the system for
memory and giving it back. What is kept is bounded, and nobody sees it.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from itertools import count
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Buffers", "Shelf", "Shelves", "clear"]

# Bytes of a cache line; and of a page, within which lines of two buffers at the same
# place are taken for one another: a load from one then waits for a store to the other.
_LINE, _PAGE = 64, 4096
# Odd, so that all lines of a page have their turn.
_APART = 9
_COUNT = count()


class Buffers:
    """Arrays of one dtype, each at the beginning of a line of its own.

    Large arrays of NumPy all begin 16 bytes into a page.

    Parameters
    ----------
    dtype : dtype
        Of all of them.
    other : Buffers or None
        Of a block that is not used at the same time: its memory is, as far as it goes.
    """

    def __init__(self, dtype: Any, other: "Buffers | None" = None) -> None:
        self._dtype = np.dtype(dtype)
        self._there = iter(() if other is None else other._made)
        self._made: list[NDArray[Any]] = []

    def empty(self, *shape: int) -> NDArray[Any]:
        """Return an array like `numpy.empty`."""
        needed = prod(shape)
        found = next(self._there, None)
        if found is None or found.size < needed:
            size = needed * self._dtype.itemsize
            memory = np.empty(size + _PAGE, np.uint8)
            start = (next(_COUNT) * _APART * _LINE - memory.ctypes.data) % _PAGE
            found = memory[start : start + size].view(self._dtype)
        self._made.append(found)
        return found[:needed].reshape(shape)


# From heads, chunks and tokens in a chunk, and a block that is not used at the same
# time, or None.
Make = Callable[[int, int, int, Any], Any]


class Shelf(dict[tuple[int, int, int], Any]):
    """The blocks of one worker, by heads, chunks and tokens in a chunk.

    Each is made when it is first needed.
    """

    kind: Hashable = None
    make: Make | None = None

    def __missing__(self, key: tuple[int, int, int]) -> Any:
        assert self.make is not None
        self[key] = self.make(*key, next(iter(self.values()), None))
        return self[key]


# The last ones used, of all calls, each with up to a few MiB; others are let go.
_KEPT: deque[Shelf] = deque(maxlen=8)
# Shapes of one shelf that are kept: sequences of many lengths would pile up.
_SHAPES = 3


class Shelves:
    """Shelves for one kind of blocks.

    Parameters
    ----------
    kind : hashable
        All that blocks depend on, but for heads, chunks and tokens.
    make : callable
        Makes a block. It has a method `forget`, which lets go of a caller's arrays.
    """

    def __init__(self, kind: Hashable, make: Make) -> None:
        self._kind, self._make = kind, make

    @contextmanager
    def lent(self, count: int) -> Iterator[list[Shelf]]:
        """Lend some shelves; they are kept if nothing goes wrong."""
        shelves = [self._found() for _ in range(count)]
        for shelf in shelves:
            shelf.kind, shelf.make = self._kind, self._make
        yield shelves
        for shelf in shelves:
            shelf.make = None  # it may know the arrays of this call, as blocks do
            while len(shelf) > _SHAPES:
                del shelf[next(iter(shelf))]
            for block in shelf.values():
                block.forget()
            _KEPT.append(shelf)

    def _found(self) -> Shelf:
        # Taking one and putting it back are single steps: threads cannot come between.
        for _ in range(len(_KEPT)):
            try:
                shelf = _KEPT.popleft()
            except IndexError:
                break
            if shelf.kind == self._kind:
                return shelf
            _KEPT.append(shelf)
        return Shelf()


def clear() -> None:
    """Let go of all that is kept."""
    _KEPT.clear()
