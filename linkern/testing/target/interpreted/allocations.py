"""Memory of PyTorch that nothing has written yet: filled with marks.

A mark is a NaN, or a large number, whose bits no computation gives. A kernel that loads
one reads what nothing wrote; an output that changes with the marks depends on it.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FILLS", "fill_with", "install", "mark", "marked", "marking"]

# By the dtypes of PyTorch. Integers are negative: a loop up to one ends at once.
_NAN = {
    "float64": 0x7FFADBADDBADDBAD,
    "float32": 0x7FFADBAD,
    "float16": 0x7EDB,
    "bfloat16": 0x7FDB,
    "int64": -0x5ADBAD,
    "int32": -0x5ADBAD,
}
_LARGE = {
    "float64": 0x6A5ADBADDBADDBAD,
    "float32": 0x7A5ADBAD,
    "float16": 0x7A5B,
    "bfloat16": 0x7A5B,
    "int64": -0x3ADBAD,
    "int32": -0x3ADBAD,
}
FILLS: Mapping[str, Mapping[str, int]] = {"nan": _NAN, "large": _LARGE}
# The same dtypes by the names of Triton.
_TRITON = {
    "fp64": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "int64": "int64",
    "int32": "int32",
}
_MODULE = ("empty", "empty_like", "empty_strided", "empty_permuted")
_METHODS = ("new_empty", "new_empty_strided")
_fill = "nan"


def fill_with(fill: str) -> None:
    """Fill new memory with the marks of one of `FILLS`."""
    global _fill  # noqa: PLW0603 -- one choice for all memory of the process
    _fill = fill


def marked(x: NDArray[Any], dtype: str) -> NDArray[np.bool_] | None:
    """Return the entries that are marks of a dtype of Triton; None if none can be."""
    name = _TRITON.get(dtype)
    if name is None:
        return None
    equal: NDArray[np.bool_] = x.view(f"i{x.itemsize}") == _signed(
        FILLS[_fill][name], x.itemsize
    )
    return equal


def mark(x: NDArray[Any], entries: NDArray[np.bool_], dtype: str) -> None:
    """Overwrite entries with the mark of a floating dtype of Triton."""
    name = _TRITON.get(dtype, "")
    if "float" in name:
        bits = x.view(f"i{x.itemsize}")
        bits[entries] = _signed(FILLS[_fill][name], x.itemsize)


def install() -> None:
    """Fill what the allocating functions of PyTorch return."""
    torch = import_module("torch")
    for owner, name in _functions(torch):
        setattr(owner, name, _marking(getattr(owner, name), torch))


@contextmanager
def marking(fill: str) -> Iterator[None]:
    """Fill what they return with the marks of one of `FILLS`, for a time."""
    torch = import_module("torch")
    usual = [(owner, name, vars(owner).get(name)) for owner, name in _functions(torch)]
    fill_with(fill)
    install()
    try:
        yield
    finally:
        for owner, name, function in usual:
            if function is None:  # inherited
                delattr(owner, name)
            else:
                setattr(owner, name, function)


def _functions(torch: Any) -> Iterator[tuple[Any, str]]:
    """Yield the allocating functions: their owners and names."""
    yield from ((torch, name) for name in _MODULE)
    yield from ((torch.Tensor, name) for name in _METHODS)


def _marking(allocate: Callable[..., Any], torch: Any) -> Callable[..., Any]:
    @functools.wraps(allocate)
    def allocated(*args: Any, **keywords: Any) -> Any:
        x = allocate(*args, **keywords)
        dtype = str(x.dtype).removeprefix("torch.")
        bits = FILLS[_fill].get(dtype)
        if bits is not None and x.device.type != "meta" and x.numel():
            integers = getattr(torch, f"int{8 * x.itemsize}")
            x.detach().view(integers).fill_(_signed(bits, x.itemsize))
        return x

    return allocated


def _signed(bits: int, size: int) -> int:
    """Return the signed integer of so many bytes that has some bits."""
    return bits - (1 << 8 * size) if bits >= 1 << (8 * size - 1) else bits
