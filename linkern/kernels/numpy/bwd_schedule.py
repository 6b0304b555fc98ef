"""Through all tokens and back: what is computed where, and in what order.

There, only the memory before each block is kept; on the way back a block is computed
again from it. As in `kernels.numpy.schedule`, threads share the heads, or the blocks of
a stretch of tokens where heads are few, and blocks depend on shapes alone.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from numpy.typing import NDArray

from linkern.kernels.numpy.bwd_workspace import Adjoint
from linkern.kernels.numpy.chunk_bwd import (
    add_back,
    add_up,
    load,
    pull_keys,
    pull_queries,
    write,
)
from linkern.kernels.numpy.schedule import Layout, Piece, pieces
from linkern.kernels.numpy.threads import share
from linkern.kernels.numpy.workspace import Shelf, Shelves

__all__ = ["go_back"]

Real = NDArray[Any]
Views = dict[str, Real]

Item = TypeVar("Item")
# Does something with each of some items, which do not depend on each other.
Each = Callable[[Callable[[Item], object], Sequence[Item]], None]


def go_back(
    shelves: Shelves,
    groups: Sequence[Views],
    layout: Layout,
    threads: int,
    *,
    causal: bool,
) -> None:
    """Take all groups of heads through all tokens, and write their gradients.

    Each group has the memory ``before (heads, width)`` all tokens, transposed, and the
    cotangent of the last one, ``state``; both are replaced. Then the tokens: inputs and
    ``output``, the cotangent, by name, and gradients as ``d_`` and the name.
    """
    walk = _there_and_back if causal else _all_at_once
    # Blocks may be of queries or of keys.
    tokens = (x.shape[-2] for group in groups for x in group.values() if x.ndim > 2)
    longest = max(tokens, default=0)
    most = len(pieces(longest, layout))
    if len(groups) >= threads or most <= 1:

        def whole(group: Views) -> Iterator[None]:
            with shelves.lent(1) as lanes:
                yield from walk(group, layout, lanes, _in_turn)

        share(groups, whole, threads)
        return
    with shelves.lent(min(threads, most)) as lanes:
        for group in groups:
            for _ in walk(group, layout, lanes, _shared(threads)):
                pass


def _in_turn(do: Callable[[Item], object], items: Sequence[Item]) -> None:
    for item in items:
        do(item)


def _shared(threads: int) -> Each[Any]:
    def each(do: Callable[[Any], object], items: Sequence[Any]) -> None:
        def one(item: Any) -> Iterator[None]:
            do(item)
            yield

        share(items, one, threads)

    return each


class _Visit(NamedTuple):
    """A block with its tokens, and which of all blocks it is."""

    block: Adjoint
    tokens: Views
    number: int


def _stretches(
    group: Views,
    names: Iterable[str],
    order: Sequence[tuple[int, Piece]],
    lanes: Sequence[Shelf],
) -> Iterator[list[_Visit]]:
    """Go through the blocks, as many at a time as there are buffers."""
    heads = group["state"].shape[0]
    there = {name: group[name] for name in names if name in group}
    for start in range(0, len(order), len(lanes)):
        stretch = order[start : start + len(lanes)]
        yield [
            _Visit(
                shelf[heads, piece.chunks, piece.size],
                {name: x[:, piece.span] for name, x in there.items()},
                number,
            )
            for shelf, (number, piece) in zip(lanes, stretch, strict=False)
        ]


_KEYS = ("key", "value", "log_decay", "d_key", "d_value", "d_log_decay")
_QUERIES = ("query", "output", "d_query")


def _there_and_back(
    group: Views, layout: Layout, lanes: Sequence[Shelf], each: Each[_Visit]
) -> Iterator[None]:
    """Take one group of heads through all blocks, where queries see earlier keys."""
    order = list(enumerate(pieces(group["key"].shape[-2], layout)))
    before, state = group["before"], group["state"]
    kept: list[Real] = []

    def there(visit: _Visit) -> None:
        load(visit.block, visit.tokens, known=False)
        write(visit.block)

    def inwards(visit: _Visit) -> None:
        block, tokens, number = visit
        # Their memories, and features of keys, are known but for those of the last.
        load(block, tokens, known=number < len(order) - 1)
        write(block)
        block.first[...] = kept[number]
        add_up(block)
        pull_queries(block, tokens)

    # The memory after the last block is not needed.
    for visits in _stretches(group, _KEYS, order[:-1], lanes):
        each(there, visits)
        for visit in visits:
            kept.append(before.copy())
            _carried_up(visit.block, before)
        yield
    kept.append(before)
    for visits in _stretches(group, (*_KEYS, *_QUERIES), order[::-1], lanes):
        each(inwards, visits)
        for visit in visits:
            _carried_back(visit.block, state)
        yield
        each(_outwards, visits)
        yield


def _all_at_once(
    group: Views, layout: Layout, lanes: Sequence[Shelf], each: Each[_Visit]
) -> Iterator[None]:
    """Take one group of heads through all blocks, where every query sees every key."""
    keys = list(enumerate(pieces(group["key"].shape[-2], layout)))
    queries = list(enumerate(pieces(group["query"].shape[-2], layout)))
    before, state = group["before"], group["state"]

    def there(visit: _Visit) -> None:
        load(visit.block, visit.tokens, known=False)
        write(visit.block)

    def inwards(visit: _Visit) -> None:
        visit.block.first[...] = before
        pull_queries(visit.block, visit.tokens)

    def outwards(visit: _Visit) -> None:
        load(visit.block, visit.tokens, known=True)
        visit.block.outermost[...] = state
        pull_keys(visit.block, visit.tokens)

    for visits in _stretches(group, _KEYS, keys, lanes):
        each(there, visits)
        for visit in visits:
            _carried_up(visit.block, before)
        yield
    for visits in _stretches(group, _QUERIES, queries, lanes):
        each(inwards, visits)
        for visit in visits:
            _carried_back(visit.block, state)
        yield
    for visits in _stretches(group, _KEYS, keys, lanes):
        each(outwards, visits)
        yield


def _outwards(visit: _Visit) -> None:
    pull_keys(visit.block, visit.tokens)


def _carried_up(block: Adjoint, memory: Real) -> None:
    block.first[...] = memory
    add_up(block)
    memory[...] = block.last


def _carried_back(block: Adjoint, cotangent: Real) -> None:
    block.outermost[...] = cotangent
    add_back(block)
    cotangent[...] = block.innermost
