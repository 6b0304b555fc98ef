"""Shapes and types of interpreted tensors, each made once.

The language makes them anew for every operation, to compile; that takes longer than to
interpret it.
"""

from functools import lru_cache
from importlib import import_module
from typing import Any

__all__ = ["install"]

# More than a kernel has.
_MOST = 4096


def install() -> None:
    """Share the shapes of tensors, and the types of blocks of one shape."""
    language: Any = import_module("triton.language.core")

    make = language.block_type.with_element_ty

    @lru_cache(_MOST)
    def shape_of(sizes: tuple[int, ...]) -> tuple[Any, Any]:
        count = 1
        for size in sizes:
            count *= size
        shape = language.tuple([language.constexpr(size) for size in sizes])
        return language.constexpr(count), shape

    @lru_cache(_MOST)
    def block_of(element: Any, sizes: tuple[int, ...]) -> Any:
        return language.block_type(element, [*sizes])

    def initialised(self: Any, handle: Any, kind: Any) -> None:
        self.handle, self.type, self.dtype = handle, kind, kind.scalar
        sizes = tuple(kind.shape.values) if kind.is_block() else ()
        self.numel, self.shape = shape_of(sizes)

    def with_element_ty(self: Any, element: Any) -> Any:
        if element.is_ptr():  # these have no hash
            return make(self, element)
        return block_of(element, tuple(self.shape.values))

    language.tensor.__init__ = initialised
    language.block_type.with_element_ty = with_element_ty
