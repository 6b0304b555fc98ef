"""Types shared by the modules of the NumPy back end."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from numpy.typing import NDArray

__all__ = ["Arrays", "Real", "Shape"]

#: An array of any real floating dtype.
Real: TypeAlias = NDArray[Any]
#: Arrays by the names of the inputs and outputs that they hold.
Arrays: TypeAlias = Mapping[str, Real]


class Shape(NamedTuple):
    """Sizes of a workspace.

    Parameters
    ----------
    heads, chunks : int
        Heads, and chunks of each.
    size : int
        Tokens in a chunk.
    features, values : int
        ``K`` and ``V``.
    """

    heads: int
    chunks: int
    size: int
    features: int
    values: int

    def split_chunks(self, rows: Real) -> Real:
        """View ``(heads, tokens, dim)`` as ``(heads, chunks, size, dim)``."""
        return rows.reshape(*self[:3], rows.shape[-1], copy=False)
