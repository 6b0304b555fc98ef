"""Pairs of a query and a key, and how often each of them counts."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Condition", "Pairs", "Real", "Weights", "counted", "seen"]

Real = NDArray[np.float64]


@dataclass(frozen=True)
class Pairs:
    """Positions of the queries and keys that may meet.

    Parameters
    ----------
    query, key : integer array (T, 1), (1, S)
        Positions; keys in front of the sequence have negative ones.
    causal : bool
        True if query i is to see keys up to i only.
    cuts : tuple of int
        Where one call ends and the next goes on from its state.
    """

    query: NDArray[np.int64]
    key: NDArray[np.int64]
    causal: bool
    cuts: tuple[int, ...] = ()

    @cached_property
    def seen(self) -> NDArray[np.bool_]:
        """The pairs that count in the operator, ``(T, S)``."""
        everything = np.ones((self.query.size, self.key.size), dtype=bool)
        return (self.key <= self.query) if self.causal else everything

    @property
    def own(self) -> NDArray[np.bool_]:
        """The pairs of a token with itself, ``(T, S)``."""
        return np.asarray(self.key == self.query)

    def behind(self, chunk: int) -> NDArray[np.int64]:
        """Return by how many chunks the key is behind the query, ``(T, S)``."""
        return np.asarray(self.query // chunk - self.key // chunk)

    def carried(self, chunk: int) -> NDArray[np.bool_]:
        """Return the pairs that meet through the state of such chunks, ``(T, S)``."""
        return np.asarray(self.behind(chunk) > 0) if self.causal else self.seen

    @property
    def handed(self) -> NDArray[np.int64]:
        """The number of calls between that of the key and that of the query."""
        of_query, of_key = (
            np.searchsorted(self.cuts, x, side="right") for x in (self.query, self.key)
        )
        return np.asarray(of_query - of_key)

    def after_full_chunks(
        self, positions: NDArray[np.int64], chunk: int
    ) -> NDArray[np.bool_]:
        """Return which positions are in a last chunk that is not full."""
        return np.asarray(positions >= (self.last + 1) // chunk * chunk)

    @property
    def last(self) -> int:
        """The position of the last key."""
        return int(self.key.max(initial=-1))


Condition = Callable[[Pairs], NDArray[np.bool_]]
Weights = Callable[[Pairs], NDArray[Any]]


def seen(pairs: Pairs) -> NDArray[np.bool_]:
    """Let every pair count as it does in the operator."""
    return pairs.seen


def counted(condition: Condition, times: float) -> Weights:
    """Let the pairs of a condition count `times` times, others as in the operator.

    Examples
    --------
    >>> pairs = Pairs(np.arange(2)[:, None], np.arange(2)[None, :], causal=True)
    >>> counted(lambda pairs: pairs.own, 0)(pairs)
    array([[0, 0],
           [1, 0]])
    """
    return lambda pairs: np.where(condition(pairs) & pairs.seen, times, pairs.seen)
