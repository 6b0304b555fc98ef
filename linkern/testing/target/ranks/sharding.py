"""Division of a sequence among ranks."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

__all__ = ["CONTIGUOUS", "ZIGZAG", "Sharding"]

CONTIGUOUS, ZIGZAG = "contiguous", "zigzag"


@dataclass(frozen=True)
class Sharding:
    """Division of any sequence among ranks, by parts of its length.

    In `contiguous` order rank r has the r-th piece of a sequence. In `zigzag` order
    there are twice as many pieces as ranks, and rank r has the r-th and, after it, the
    r-th from the end.

    Parameters
    ----------
    ranks : int
        The number of ranks.
    edges : tuple of float
        For each piece but the first, the part of the sequence before it, from 0 to 1.
        Default: pieces of equal size, as far as there are any.
    order : {"contiguous", "zigzag"}
        Order of the pieces.
    least : int
        Tokens that each piece has, of sequences that have so many for all.

    Examples
    --------
    >>> Sharding(2).sizes(5), Sharding(3, (0.0, 0.2)).sizes(5)
    ((3, 2), (0, 1, 4))
    >>> Sharding(3, (0.0, 0.2), least=1).sizes(5)
    (1, 1, 3)
    >>> [x.tolist() for x in Sharding(2, order="zigzag").tokens(4)]
    [[0, 3], [1, 2]]
    """

    ranks: int
    edges: tuple[float, ...] = ()
    order: str = CONTIGUOUS
    least: int = 0

    @property
    def pieces(self) -> int:
        """The number of pieces."""
        return self.ranks * (2 if self.order == ZIGZAG else 1)

    @property
    def last(self) -> int:
        """The rank of the last piece; rank 0 has the first."""
        return 0 if self.order == ZIGZAG else self.ranks - 1

    def sizes(self, length: int) -> tuple[int, ...]:
        """Return the number of tokens of each piece of a sequence."""
        count, ends = self.pieces, [0]
        for piece in range(1, count):
            if self.edges:
                end = round(self.edges[piece - 1] * length)
            else:
                end = -(-piece * length // count)
            end = min(end, length - (count - piece) * self.least)
            ends.append(max(end, min(ends[-1] + self.least, length)))
        return tuple(b - a for a, b in pairwise((*ends, length)))

    def tokens(self, length: int) -> list[NDArray[np.intp]]:
        """Return the tokens of each rank, in its own order."""
        splits = np.cumsum(self.sizes(length))[:-1]
        pieces = np.split(np.arange(length), splits)
        if self.order == CONTIGUOUS:
            return pieces
        pairs = zip(pieces, pieces[::-1], strict=True)
        return [np.concatenate(pair) for pair in pairs][: self.ranks]

    def place(self, token: int, length: int) -> tuple[int, int]:
        """Return the rank of a token, and its position there.

        Examples
        --------
        >>> Sharding(2).place(3, 5)
        (1, 0)
        """
        for rank, tokens in enumerate(self.tokens(length)):
            (at,) = np.nonzero(tokens == token)
            if at.size:
                return rank, int(at[0])
        msg = f"`token` must be one of {length}, got {token}."
        raise ValueError(msg)

    def described(self, length: int) -> str:
        """Return the tokens of each piece of a sequence in words.

        Examples
        --------
        >>> Sharding(3, (0.0, 0.2)).described(5)
        '3 ranks with 0+1+4 tokens'
        """
        sizes = "+".join(map(str, self.sizes(length)))
        order = "" if self.order == CONTIGUOUS else f" in {self.order} order"
        return f"{self.ranks} ranks with {sizes} tokens{order}"
