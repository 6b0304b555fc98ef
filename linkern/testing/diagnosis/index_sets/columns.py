"""Columns of a table of entries, each made when it is first asked for.

A table of all maps of a result has some twenty columns, and a statement is about one or
two of them.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from numpy.typing import NDArray

__all__ = ["Columns", "beside"]

Column = NDArray[Any]
Makers = Mapping[str, Callable[[], Column]]


class Columns(Mapping[str, Column]):
    """Columns by their names.

    Parameters
    ----------
    made : mapping of str to callable
        Each returns a column.
    """

    def __init__(self, made: Makers) -> None:
        self._made = dict(made)
        self._known: dict[str, Column] = {}

    def __getitem__(self, name: str) -> Column:
        """Return a column."""
        if name not in self._known:
            self._known[name] = self._made[name]()
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        """Return True if there is a column of that name; it is not made."""
        return name in self._made

    def __iter__(self) -> Iterator[str]:
        """Return the names in their order."""
        return iter(self._made)

    def __len__(self) -> int:
        """Return the number of columns."""
        return len(self._made)

    def __or__(self, others: Makers) -> "Columns":
        """Return these columns with others, or others in their place."""
        return Columns({**{x: partial(self.__getitem__, x) for x in self}, **others})

    def part(self, chosen: Column) -> "Columns":
        """Return the columns of some entries."""
        return Columns({name: partial(self._part, name, chosen) for name in self})

    def _part(self, name: str, chosen: Column) -> Column:
        part: Column = self[name][chosen]
        return part


def beside(*tables: Mapping[str, Column]) -> Columns:
    """Return the columns of several tables; of two of a name, that of the first."""
    return Columns(
        {name: partial(x.__getitem__, name) for x in tables[::-1] for name in x}
    )
