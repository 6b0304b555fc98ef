"""Walking through sequences: what is computed where, and in what order.

A block of tokens is looked at alone, then the state is carried through it, then it is
looked at with the states inside. Threads share the heads; where there are fewer heads
than threads they share the blocks of a stretch of tokens, and only the state goes from
block to block in order. Blocks follow from shapes: results do not depend on threads.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from numpy.typing import NDArray

from linkern.kernels.numpy.threads import share
from linkern.kernels.numpy.workspace import Shelf, Shelves

__all__ = ["Layout", "Pass", "Piece", "go", "pieces"]

Real = NDArray[Any]
Tokens = Mapping[str, Real]


class Layout(NamedTuple):
    """How many tokens meet.

    Parameters
    ----------
    chunks : int
        In a block, at most.
    size : int
        Tokens in a chunk, at most.
    """

    chunks: int
    size: int


class Piece(NamedTuple):
    """A span of tokens, and the chunks it is made of, all of one size."""

    span: slice
    chunks: int
    size: int


def pieces(length: int, layout: Layout) -> list[Piece]:
    """Cut a sequence into blocks: full ones, then what is left, then a short chunk."""
    whole, rest = divmod(length, layout.size)
    counts = [layout.chunks] * (whole // layout.chunks)
    if whole % layout.chunks:
        counts.append(whole % layout.chunks)
    found, start = [], 0
    for count in counts:
        stop = start + count * layout.size
        found.append(Piece(slice(start, stop), count, layout.size))
        start = stop
    if rest:
        found.append(Piece(slice(start, length), 1, rest))
    return found


@dataclass(frozen=True)
class Pass:
    """One way through all tokens.

    Parameters
    ----------
    shelves : Shelves
        The buffers.
    alone : callable or None
        ``alone(block, tokens)``: what a block is without a state.
    follow : callable or None
        ``follow(block, tokens)``: what it is with the states in it.
    carry : callable or None
        ``carry(block)`` takes the state from ``block.first`` to ``block.last``; None if
        it stays as it is.
    """

    shelves: Shelves
    alone: Callable[[Any, Tokens], object] | None = None
    follow: Callable[[Any, Tokens], object] | None = None
    carry: Callable[[Any], object] | None = None


def go(
    the: Pass,
    groups: Sequence[dict[str, Real]],
    order: Sequence[Piece],
    threads: int,
) -> None:
    """Take all groups of heads through all pieces, in the order given.

    Each group has a ``state (heads, width)``, which is replaced, and the tokens:
    ``(heads, T, dim)``.
    """
    if len(groups) >= threads or len(order) == 1:
        share(groups, lambda group: _through(the, group, order), threads)
        return
    with the.shelves.lent(min(threads, len(order))) as lanes:
        for group in groups:
            for start in range(0, len(order), len(lanes)):
                stretch = order[start : start + len(lanes)]
                _side_by_side(the, group, stretch, lanes, threads)


def _through(
    the: Pass, group: dict[str, Real], order: Sequence[Piece]
) -> Iterator[None]:
    """Take one group through all pieces; it may be left between two of them."""
    with the.shelves.lent(1) as [shelf]:
        for piece in order:
            block, tokens = _entered(shelf, group, piece)
            if the.alone is not None:
                the.alone(block, tokens)
            _carried(the, block, group["state"])
            if the.follow is not None:
                the.follow(block, tokens)
            yield


def _side_by_side(
    the: Pass,
    group: dict[str, Real],
    order: Sequence[Piece],
    lanes: Sequence[Shelf],
    threads: int,
) -> None:
    """Take one group through a stretch, all blocks of it at the same time."""
    entered = [
        _entered(shelf, group, piece)
        for shelf, piece in zip(lanes, order, strict=False)
    ]

    def doing(step: Callable[[Any, Tokens], object] | None) -> None:
        def one(item: tuple[Any, Tokens]) -> Iterator[None]:
            if step is not None:
                step(*item)
            yield

        share(entered, one, threads)

    doing(the.alone)
    for block, _ in entered:
        _carried(the, block, group["state"])
    doing(the.follow)


def _entered(shelf: Shelf, group: dict[str, Real], piece: Piece) -> tuple[Any, Tokens]:
    span, chunks, size = piece
    tokens = {n: x[:, span] for n, x in group.items() if n != "state"}
    return shelf[group["state"].shape[0], chunks, size], tokens


def _carried(the: Pass, block: Any, state: Real) -> None:
    block.first[...] = state
    if the.carry is not None:
        the.carry(block)
        state[...] = block.last
