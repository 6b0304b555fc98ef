"""Types for readers and for mypy; at run time an array is whatever its library says.

`ArrayT` is the type of the arrays of one library: arrays of PyTorch in, arrays of
PyTorch out. Where NumPy's types know more, it is what all inputs have in common; a
dtype or a number of axes in it is not promised of a result.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

__all__ = [
    "Array",
    "ArrayT",
    "ArrayT_co",
    "DType",
    "Device",
    "FeatureMapFunction",
    "Namespace",
]

Namespace: TypeAlias = Any
DType: TypeAlias = Any
Device: TypeAlias = Any

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    class Array(Protocol):
        """The part of an array API object that this package uses."""

        @property
        def shape(self) -> tuple[int, ...]:
            """Sizes of the axes."""

        @property
        def ndim(self) -> int:
            """Number of axes."""

        @property
        def dtype(self) -> DType:
            """Type of the entries."""

        def __int__(self) -> int: ...
        def __getitem__(self, key: Any, /) -> "Array": ...
        def __neg__(self) -> "Array": ...
        def __add__(self, other: Any, /) -> "Array": ...
        def __radd__(self, other: Any, /) -> "Array": ...
        def __sub__(self, other: Any, /) -> "Array": ...
        def __rsub__(self, other: Any, /) -> "Array": ...
        def __mul__(self, other: Any, /) -> "Array": ...
        def __rmul__(self, other: Any, /) -> "Array": ...
        def __truediv__(self, other: Any, /) -> "Array": ...
        def __matmul__(self, other: Any, /) -> "Array": ...
        def __or__(self, other: Any, /) -> "Array": ...
        def __and__(self, other: Any, /) -> "Array": ...
        def __lt__(self, other: Any, /) -> "Array": ...
        def __gt__(self, other: Any, /) -> "Array": ...
        def __le__(self, other: Any, /) -> "Array": ...
        def __ge__(self, other: Any, /) -> "Array": ...

    ArrayT = TypeVar("ArrayT", bound=Array)
    ArrayT_co = TypeVar("ArrayT_co", bound=Array, covariant=True, default=Array)

else:
    from typing import TypeVar

    Array = Any
    ArrayT = TypeVar("ArrayT")
    ArrayT_co = TypeVar("ArrayT_co", covariant=True)

FeatureMapFunction: TypeAlias = Callable[[Any], Any]
