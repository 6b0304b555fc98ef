"""Moves: exact entries of another place, or other ones, in place of the right ones."""

from collections.abc import Callable, Mapping

import numpy as np

from linkern.testing.influence.maps import Index, InfluenceMap, Real

__all__ = ["MOVES", "moved"]

Places = Mapping[str, Index]
# Coordinates of a weight that are no place in its tensor, and those of gradients.
_OF_WEIGHTS = {"output": ("source", "written", "key channel")}
_OF_PAIRS = ("row", "source", "written", "earlier token")
# The other place by the text of a move.
MOVES: Mapping[str, Callable[[Places], Places]] = {
    "that of head 0": lambda at: {"head": 0 * at["head"]},
    "that of the head before": lambda at: {"head": at["head"] - 1},
    "that of the next head": lambda at: {"head": at["head"] + 1},
    "that of the row before": lambda at: {"row": at["row"] - 1},
    "that of the next row": lambda at: {"row": at["row"] + 1},
    "that of batch entry 0": lambda at: {"batch": 0 * at["batch"]},
    "key channel and value channel exchanged": lambda at: {
        "key channel": at["value channel"],
        "value channel": at["key channel"],
    },
}


def moved(entries: InfluenceMap, text: str) -> Real:
    """Return the exact entries at the places that a move leads to, or others by name.

    They are NaN where the map has no such entry, and where it is the same one.
    """
    if text not in MOVES:
        nothing = np.full(entries.exact.shape, np.nan)
        return entries.others.get(text, nothing)
    omitted = _OF_WEIGHTS.get(entries.tensor, _OF_PAIRS)
    token = {"gradient of query": "row"}.get(entries.tensor, "source")
    kept = {token} if entries.tensor.startswith("gradient") else set()
    known = entries.coordinates
    places = {n: x for n, x in known.items() if n not in omitted or n in kept}
    try:
        others = {**places, **MOVES[text](places)}
    except KeyError:
        return np.full(entries.exact.shape, np.nan)
    both = np.array([[places[name], others[name]] for name in places])
    both -= both.min(axis=(1, 2), keepdims=True)
    size = tuple(both.max(axis=(1, 2)) + 1)
    index, other = (np.ravel_multi_index(tuple(both[:, i]), size) for i in (0, 1))
    order = np.argsort(index)
    at = order[np.searchsorted(index, other, sorter=order).clip(0, len(order) - 1)]
    there = (index[at] == other) & (index != other)
    return np.where(there, entries.exact[at], np.nan)
