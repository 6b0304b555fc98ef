"""States before the blocks of a lane, by a parallel scan over the maps of the blocks.

A block of tokens is an affine map of the state, and maps compose associatively. So a
task for each block, which needs no other one, makes its map; about two compositions for
each block, in a tree, make the maps from the first token to every block.

Source: Blelloch 1990, "Prefix Sums and Their Applications"; Dask's own one,
`dask.array.cumreduction`, takes one array and a number for each of its entries.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from linkern.kernels.dask.layout import Key, Lane
from linkern.state import State

__all__ = ["entered", "prefixes", "span_tasks"]


def span_tasks(call: Any, inputs: Sequence[Any]) -> dict[Key, Any]:
    """Return the tasks that make the map of every block but the last of its lane."""
    tasks: dict[Key, Any] = {}
    span, names = call.name("span"), call.span.names
    at = names.index("query") if "query" in names else None
    seen = [None if i == at else x for i, x in enumerate(inputs)]
    reads = call.readings(span, seen)
    for lane in call.layout.lanes():
        for n in range(len(call.layout.tokens) - 1):
            shape = None
            if at is not None:
                _, *where = call.layout.key(inputs[at], call.letters[at], lane, n)
                sizes = zip(inputs[at].chunks, where, strict=True)
                shape = tuple(chunks[i] for chunks, i in sizes)
            read = reads[span, *lane, n]
            work = partial(call.span.map, shape, read)
            tasks[span, *lane, n] = (work, list(read.sources))
    return tasks


def prefixes(call: Any, lane: Lane) -> tuple[dict[Key, Any], list[Key]]:
    """Return the tasks that compose the maps of a lane, and the keys of all prefixes.

    The n-th prefix is the map of the blocks up to the n-th, that one included.
    """
    tasks: dict[Key, Any] = {}
    number = len(call.layout.tokens) - 1
    keys = [(call.name("span"), *lane, n) for n in range(number)]

    def join(first: int, second: int) -> None:
        key = (call.name("prefix"), *lane, second, second - first)
        tasks[key] = (_composed, keys[first], keys[second])
        keys[second] = key

    stride = 1
    while stride < number:
        for n in range(2 * stride - 1, number, 2 * stride):
            join(n - stride, n)
        stride *= 2
    while stride > 1:
        stride //= 2
        for n in range(3 * stride - 1, number, 2 * stride):
            join(n - stride, n)
    return tasks, keys


def _composed(earlier: Any, later: Any) -> Any:
    return earlier.combine(later)


def entered(prefix: Any, state: State | None) -> State:
    """Return the state after a prefix, from the one before the first token."""
    after: State = prefix.increment if state is None else prefix.apply(state)
    return after
