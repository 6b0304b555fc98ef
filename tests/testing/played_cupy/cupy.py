"""CuPy as NumPy can play it: arrays with pointers, an allocator, devices, streams."""

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
from numpy import int64

__version__ = "14.2.0"
__all__ = ["RawKernel", "array", "asnumpy", "cuda", "empty", "int64", "ndarray"]

# What happened, in order.
events = []


class Pointer:
    """A place in memory."""

    def __init__(self, memory, offset=0):
        self.memory, self.offset = memory, offset
        self.mem = SimpleNamespace(ptr=memory.ctypes.data)

    def __add__(self, offset):
        return Pointer(self.memory, self.offset + offset)

    def memset_async(self, byte, size):
        self.memory[:size] = byte


class ndarray(np.ndarray):
    """An array on a device."""

    def __new__(cls, shape, dtype=float, memptr=None, strides=None):
        if memptr is None:
            memptr = _allocators[-1](int(np.prod(shape)) * np.dtype(dtype).itemsize)
        at = memptr.memory, memptr.offset
        return super().__new__(cls, shape, dtype, *at, strides)

    @property
    def data(self):
        """The pointer to its first number."""
        return Pointer(np.asarray(self).ravel(order="K").view(np.uint8))


def array(x):
    return np.array(x, order="K").view(ndarray)


def empty(shape, dtype):
    return ndarray(shape, dtype)


def asnumpy(x):
    return np.array(x.view(np.ndarray))


def _malloc(size):
    return Pointer(np.zeros(size, np.uint8))


# The one in use is the last.
_allocators = [_malloc]


@contextmanager
def _using_allocator(allocator):
    _allocators.append(allocator)
    yield
    _allocators.pop()


class _Device:
    def __init__(self, index):
        self.index = index

    def __enter__(self):
        events.append(f"device {self.index}")

    def __exit__(self, *_):
        pass

    def synchronize(self):
        events.append("synchronized")


@contextmanager
def _stream(*, non_blocking):
    events.append(f"stream, {non_blocking=}")
    yield


class RawKernel:
    """A kernel of which the launches are noted."""

    def __init__(self, _source, name):
        self.name = name

    def __call__(self, *_):
        events.append(self.name)


cuda = SimpleNamespace(
    Device=_Device,
    Stream=_stream,
    get_allocator=lambda: _allocators[-1],
    is_available=lambda: False,
    using_allocator=_using_allocator,
)
