"""Types for readers and for mypy; at run time an array is whatever its library says."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

__all__ = ["Array", "DType", "Device", "FeatureMapFunction", "Namespace"]

Namespace: TypeAlias = Any
DType: TypeAlias = Any
Device: TypeAlias = Any

if TYPE_CHECKING:

    class Array(Protocol):
        """The part of an array API object that this package uses."""

        @property
        def shape(self) -> tuple[int, ...]: ...
        @property
        def ndim(self) -> int: ...
        @property
        def dtype(self) -> DType: ...

        def __getitem__(self, key: Any, /) -> "Array": ...
        def __add__(self, other: Any, /) -> "Array": ...
        def __mul__(self, other: Any, /) -> "Array": ...
        def __truediv__(self, other: Any, /) -> "Array": ...
        def __matmul__(self, other: Any, /) -> "Array": ...
        def __gt__(self, other: Any, /) -> "Array": ...
        def __le__(self, other: Any, /) -> "Array": ...

else:
    Array = Any

FeatureMapFunction: TypeAlias = Callable[[Any], Any]
