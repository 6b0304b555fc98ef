"""Rows of operators whose rows are averages: their factors, their sums, and the pairs.

A weight is a quotient of a term and the sum of the terms of its row. A fault of the
denominator multiplies a row, one of a term changes its row as well.
"""

from dataclasses import replace

import numpy as np

from linkern.testing.diagnosis.influence import Index, InfluenceMap, Real

__all__ = ["split_rows"]


def split_rows(
    entries: InfluenceMap,
) -> tuple[InfluenceMap, InfluenceMap, InfluenceMap]:
    """Return the pairs, the factor and the sum of each row.

    Returns
    -------
    pairs : InfluenceMap
        The entries, divided by the factor of their row.
    factors : InfluenceMap
        The median ratio of measured and exact weights of each row, exactly 1.
    sums : InfluenceMap
        The sum of the measured weights of each row.
    """
    rows, first = _rows(entries)
    seen = (entries.exact != 0) & (entries.measured != 0) & ~entries.silent
    with np.errstate(all="ignore"):
        ratio = np.where(seen, entries.measured / entries.exact, np.nan)
        slack = entries.bound / abs(entries.exact)
        likely = entries.likely / abs(entries.exact)
    middle = _middles(rows, ratio, len(first))
    known = middle >= 0
    factor = np.where(known, ratio[middle], 1.0)
    around, likely_around = (np.where(known, x[middle], 0.0) for x in (slack, likely))
    at = {n: x[first] for n, x in entries.coordinates.items() if n in _OF_ROWS}

    def by_row(tensor: str, *columns: Real) -> InfluenceMap:
        measured, exact, bound, likely = columns
        return InfluenceMap(tensor, entries.problem, measured, exact, bound, likely, at)

    def summed(x: Real) -> Real:
        return np.bincount(rows, x, len(first)).astype(np.float64)

    one = np.ones(len(first))
    factors = by_row("row factor", factor, one, around, likely_around)
    columns = (entries.measured, entries.exact, entries.bound)
    likely_sums = np.sqrt(summed(entries.likely**2))
    sums = by_row("row sum", *map(summed, columns), likely_sums)
    with np.errstate(all="ignore"):
        pairs = replace(
            entries,
            measured=entries.measured / factor[rows],
            bound=(entries.bound + abs(entries.measured) * around[rows])
            / abs(factor[rows]),
            likely=(entries.likely + abs(entries.measured) * likely_around[rows])
            / abs(factor[rows]),
        )
    return pairs, factors, sums


# Coordinates that all entries of a row share.
_OF_ROWS = ("row", "batch", "head", "sequence", "span")


def _rows(entries: InfluenceMap) -> tuple[Index, Index]:
    """Return the number of the row of each entry, and an entry of each row."""
    table = np.stack([x for n, x in entries.coordinates.items() if n in _OF_ROWS])
    _, first, rows = np.unique(table, axis=1, return_index=True, return_inverse=True)
    return np.asarray(rows.ravel()), np.asarray(first)


def _middles(rows: Index, ratio: Real, count: int) -> Index:
    """Return the entry of the median ratio of each row, -1 where there is none."""
    order = np.lexsort((ratio, rows))
    order = order[np.isfinite(ratio[order])]
    sizes = np.bincount(rows[order], minlength=count)
    starts = np.cumsum(sizes) - sizes
    middles = np.full(count, -1)
    there = sizes > 0
    middles[there] = order[(starts + sizes // 2)[there]]
    return middles
