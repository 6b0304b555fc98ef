"""Workspace memory: aligned buffers, and a pool of workspaces kept between calls.

For a call that takes a millisecond, allocating and freeing its buffers would take as
long again. The pool is bounded, and its memory never reaches the caller.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from itertools import count
from math import prod
from typing import Any

import numpy as np

from linkern.kernels.numpy.types import Real

__all__ = ["Arena", "WorkspacePool", "Workspaces", "clear"]

# Bytes of a cache line and of a page. A load from a line waits for a store to a line at
# the same offset of another page (4K aliasing).
_LINE, _PAGE = 64, 4096
# Lines between the starts of two buffers within a page: odd, so that all are used.
_STAGGER = 9
_COUNT = count()


class Arena:
    """Allocator of arrays of one dtype that start at staggered cache lines.

    Large arrays of NumPy all start 16 bytes into a page.

    Parameters
    ----------
    dtype : dtype
        Dtype of the arrays.
    reuse : Arena or None
        Arena of a workspace that is not used at the same time; its memory is used again
        wherever it is large enough.
    """

    def __init__(self, dtype: Any, reuse: "Arena | None" = None) -> None:
        self._dtype = np.dtype(dtype)
        self._reusable = iter(() if reuse is None else reuse._buffers)
        self._buffers: list[Real] = []

    def empty(self, *shape: int) -> Real:
        """Return an array like `numpy.empty`."""
        needed = prod(shape)
        buffer = next(self._reusable, None)
        if buffer is None or buffer.size < needed:
            size = needed * self._dtype.itemsize
            memory = np.empty(size + _PAGE, np.uint8)
            start = (next(_COUNT) * _STAGGER * _LINE - memory.ctypes.data) % _PAGE
            buffer = memory[start : start + size].view(self._dtype)
        self._buffers.append(buffer)
        return buffer[:needed].reshape(shape)


# Makes a workspace from heads, chunks, tokens in a chunk, and a workspace that is not
# used at the same time, or None.
Make = Callable[[int, int, int, Any], Any]


class Workspaces(dict[tuple[int, int, int], Any]):
    """Workspaces of one worker, by heads, chunks and tokens in a chunk.

    Each is made when it is first needed.
    """

    kind: Hashable = None
    make: Make | None = None

    def __missing__(self, key: tuple[int, int, int]) -> Any:
        assert self.make is not None
        self[key] = self.make(*key, next(iter(self.values()), None))
        return self[key]


# The most recently used workspaces of all calls, with up to a few MiB each.
_FREE: deque[Workspaces] = deque(maxlen=8)
# Shapes kept per worker: sequences of many lengths would pile up.
_MAX_SHAPES = 3


class WorkspacePool:
    """Pool of workspaces of one kind.

    Parameters
    ----------
    kind : hashable
        Everything that a workspace depends on, except heads, chunks and tokens.
    make : callable
        Makes a workspace. Its method `release` drops references to a caller's arrays.
    """

    def __init__(self, kind: Hashable, make: Make) -> None:
        self._kind, self._make = kind, make

    @contextmanager
    def borrow(self, count: int) -> Iterator[list[Workspaces]]:
        """Yield the workspaces of `count` workers; keep them if nothing is raised."""
        workers = [self._take() for _ in range(count)]
        for workspaces in workers:
            workspaces.kind, workspaces.make = self._kind, self._make
        yield workers
        for workspaces in workers:
            workspaces.make = None  # it may refer to arrays of this call
            while len(workspaces) > _MAX_SHAPES:
                del workspaces[next(iter(workspaces))]
            for workspace in workspaces.values():
                workspace.release()
            _FREE.append(workspaces)

    def _take(self) -> Workspaces:
        # `popleft` and `append` are atomic, so threads need no lock.
        for _ in range(len(_FREE)):
            try:
                workspaces = _FREE.popleft()
            except IndexError:
                break
            if workspaces.kind == self._kind:
                return workspaces
            _FREE.append(workspaces)
        return Workspaces()


def clear() -> None:
    """Free all workspaces that are kept."""
    _FREE.clear()
