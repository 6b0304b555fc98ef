"""Moves: exact entries of another place, measured in place of the right ones."""

from collections.abc import Callable, Mapping

import numpy as np

from linkern.testing.influence.maps import Index, InfluenceMap, Real

__all__ = ["MOVES", "moved"]

Places = Mapping[str, Index]
# Places of an entry in an output; others follow from them.
_OF_OUTPUT = ("batch", "head", "row", "value channel", "sequence", "span")
# Of a gradient, those that are of the pair that it comes from.
_OF_PAIRS = ("row", "source", "written", "earlier token")


def _to(axis: str, change: Callable[[Index], Index]) -> Callable[[Places], Places]:
    return lambda places: {**places, axis: change(places[axis])}


def _exchanged(places: Places) -> Places:
    key, value = places["key channel"], places["value channel"]
    return {**places, "key channel": value, "value channel": key}


# Moves by their texts, with the axes that they need.
MOVES: dict[str, tuple[tuple[str, ...], Callable[[Places], Places]]] = {
    "that of head 0": (("head",), _to("head", np.zeros_like)),
    "that of the head before": (("head",), _to("head", lambda x: x - 1)),
    "that of the next head": (("head",), _to("head", lambda x: x + 1)),
    "that of the row before": (("row",), _to("row", lambda x: x - 1)),
    "that of the next row": (("row",), _to("row", lambda x: x + 1)),
    "that of batch entry 0": (("batch",), _to("batch", np.zeros_like)),
    "that of sequence 0": (("sequence",), _to("sequence", np.zeros_like)),
    "key channel and value channel exchanged": (
        ("key channel", "value channel"),
        _exchanged,
    ),
}


def _positions(entries: InfluenceMap) -> dict[str, Index]:
    """Return the coordinates that are the place of an entry in its tensor."""
    known = entries.coordinates
    if entries.tensor == "output":
        return {name: known[name] for name in _OF_OUTPUT if name in known}
    token = {"gradient of query": "row"}.get(entries.tensor, "source")
    if not entries.tensor.startswith("gradient"):
        token = ""
    return {n: x for n, x in known.items() if n not in _OF_PAIRS or n == token}


def moved(entries: InfluenceMap, text: str) -> Real:
    """Return the exact entries at the places that a move leads to.

    They are NaN where the map has no such entry, and where it is the same one.
    """
    needed, change = MOVES[text]
    places = _positions(entries)
    nothing = np.full(entries.exact.shape, np.nan)
    if not set(needed) <= places.keys() or not nothing.size:
        return nothing
    others = change(places)
    least = {name: min(places[name].min(), others[name].min()) for name in places}
    most = {name: max(places[name].max(), others[name].max()) for name in places}
    size = tuple(int(most[name] - least[name]) + 1 for name in places)
    index, other = (
        np.ravel_multi_index(tuple(x[name] - least[name] for name in places), size)
        for x in (places, others)
    )
    order = np.argsort(index)
    at = order[np.searchsorted(index, other, sorter=order).clip(0, len(order) - 1)]
    there = (index[at] == other) & (index != other)
    return np.where(there, entries.exact[at], np.nan)
