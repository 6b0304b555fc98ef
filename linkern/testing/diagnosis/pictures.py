"""Pictures of influence maps: a few cells, each with the entry that is worst in it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.testing.diagnosis.diagnosis import Picture
from linkern.testing.influence.maps import Flags, Index, InfluenceMap, Real

__all__ = ["CELLS", "picture"]

# Cells of a picture along an axis, at most.
CELLS = 64
# Coordinates that go along an axis, the usual ones first.
_AXES = ("row", "source", "key channel", "value channel", "sequence", "span", "head")


def picture(
    entries: InfluenceMap, where: str = "", chunk: int | None = None
) -> Picture | None:
    """Return a map in few cells; None if it has no entries, sources or second axis.

    Parameters
    ----------
    entries : InfluenceMap
        The map; of several heads, the one with most wrong entries shows.
    where : str
        The place of the deviation: a channel named there goes across.
    chunk : int, optional
        Chunk size that the place names: no cell crosses an edge, if there is room.
    """
    axes = _axes(entries, where)
    if axes is None:
        return None
    chosen, part = _part(entries, axes)
    down, across = (entries.coordinates[name][chosen] for name in axes)
    edges = [chunk if name in ("row", "source") else None for name in axes]
    rows, row = _cells(down, edges[0])
    columns, column = _cells(across, edges[1])
    cell, worst = _worst(entries, chosen, row * len(columns) + column)

    def grid(values: NDArray[Any], empty: Any) -> tuple[tuple[Any, ...], ...]:
        filled = np.full((len(rows), len(columns)), empty)
        filled.flat[cell] = values
        return tuple(tuple(line) for line in filled.tolist())

    cells = tuple("".join(line) for line in grid(_letters(entries, worst), " "))
    measured, exact = (
        grid(x[worst], np.nan) for x in (entries.measured, entries.exact)
    )
    shown = entries.tensor, axes, rows, columns, cells, measured, exact
    return Picture(*shown, chunk=chunk, part=part)


def _axes(entries: InfluenceMap, where: str) -> tuple[str, str] | None:
    """Return the coordinates that go down and across."""
    coordinates = entries.coordinates
    if "source" not in coordinates:
        return None
    varying = (
        [name for name in _AXES if name in coordinates and np.ptp(coordinates[name])]
        if entries.exact.size
        else []
    )
    if len(varying) < 2:
        return None
    named = [name for name in varying if name.endswith("channel") and name in where]
    across = (named or ["source"] * ("source" in varying) or varying[1:])[0]
    return next(name for name in varying if name != across), across


def _part(entries: InfluenceMap, axes: tuple[str, str]) -> tuple[Index, str]:
    """Return the entries of the head with most wrong ones; of all batch entries."""
    head = entries.coordinates.get("head")
    if head is None or "head" in axes or not np.ptp(head):
        return np.arange(entries.exact.size), ""
    most = int(np.argmax(np.bincount(head, entries.wrong)))
    return np.flatnonzero(head == most), f"head {most}"


def _cells(x: Index, chunk: int | None) -> tuple[tuple[int, ...], Index]:
    """Return the first coordinate of each cell, and the cell of each entry."""
    step = _step(x, chunk)
    first, place = np.unique(np.where(x < 0, -step, x) // step, return_inverse=True)
    return tuple(np.maximum(first * step, -1).tolist()), place


def _step(x: Index, chunk: int | None) -> int:
    """Return the width of a cell: one that divides the chunk, or is divided by it."""
    if np.unique(x).size <= CELLS:
        return 1
    least = -(-(int(x.max()) + 1) // CELLS)
    if chunk is None:
        return least
    fitting = (n for n in range(least, 2 * chunk) if chunk % n == 0 or n % chunk == 0)
    return next(fitting, least)


def _worst(
    entries: InfluenceMap, chosen: Index, cell: NDArray[np.int64]
) -> tuple[Index, Index]:
    """Return the cells that hold entries, and the worst entry of each."""
    with np.errstate(all="ignore"):
        ratio = entries.error[chosen] / entries.bound[chosen]
    beyond = np.where(entries.wrong[chosen], np.nan_to_num(ratio, nan=np.inf), 0.0)
    size = np.nan_to_num(abs(entries.exact[chosen]), nan=np.inf)
    order = np.lexsort((size, beyond, cell))
    last: Flags = np.append(cell[order][1:] != cell[order][:-1], True)
    return cell[order][last], chosen[order][last]


def _letters(entries: InfluenceMap, worst: Index) -> NDArray[np.str_]:
    """Return the class of each entry."""
    measured, exact = entries.measured[worst], entries.exact[worst]
    wrong = entries.wrong[worst]
    with np.errstate(all="ignore"):
        ratio: Real = measured / exact
    classes = [
        (~wrong & (exact == 0) & (measured == 0), " "),
        (~wrong, "."),
        (~np.isfinite(measured), "!"),
        (exact == 0, "+"),
        (measured == 0, "0"),
        (ratio < 0, "-"),
        (abs(ratio) < 1, "<"),
    ]
    return np.select([c for c, _ in classes], [letter for _, letter in classes], ">")
