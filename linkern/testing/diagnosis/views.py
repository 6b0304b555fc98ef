"""Views: maps that follow from a map of weights, in which a fault is shorter to say.

A weight is a product over the tokens from its source to its row. What is wrong at one
of them is wrong in all later rows; in the factor from one row to the next, it is wrong
once. A token that is lost changes the weights of others, but is lost alone. Where
weights are divided by their sum, a wrong sum is wrong in a whole row, and a
pair is wrong beside the others of its row.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from linkern.oracle import unit_roundoff
from linkern.testing.influence.maps import Flags, Index, InfluenceMap, Real

__all__ = ["View", "beside_rows", "lost", "row_sums", "steps"]

View = Callable[[InfluenceMap], InfluenceMap | None]
# Coordinates that a row shares with all of its sources.
OF_ROWS = ("row", "batch", "head", "sequence", "span")
# Shares of a row's sources that must have one factor, for it to be that of the row's
# sum: where the map holds all sources, and where some may be those of a fault.
COMMON = 0.5
NEARLY_ALL = 0.9
# Sources of a row that has a factor.
FEWEST = 3
# No source and no row.
NOWHERE = -2


def beside_rows(one: InfluenceMap) -> InfluenceMap | None:
    """Return weights as multiples of the factor that most weights of a row share.

    None if there are no rows of several weights.
    """
    table = _rows(one)
    if table is None:
        return None
    row, shared, unsure, _ = table
    with np.errstate(all="ignore"):
        measured = one.measured / shared[row]
        more = np.nan_to_num(abs(one.exact) * unsure[row])
    # A quotient that overflows is no number of the target.
    known = np.isfinite(shared[row])
    known &= np.isfinite(measured) | ~np.isfinite(one.measured)
    view = replace(
        one, measured=measured, bound=one.bound + more, likely=one.likely + more
    )
    return _part(view, known)


def row_sums(one: InfluenceMap) -> InfluenceMap | None:
    """Return the factor that most weights of a row share, an entry for each row."""
    table = _rows(one)
    if table is None:
        return None
    row, shared, _, first = table
    with np.errstate(all="ignore"):
        relative = one.bound / abs(one.exact)
        likely = one.likely / abs(one.exact)
    relative, likely = (
        np.maximum.reduceat(np.nan_to_num(x, nan=0.0, posinf=0.0)[np.argsort(row)], at)
        for x, at in ((relative, _starts(row)), (likely, _starts(row)))
    )
    coordinates = {k: x[first] for k, x in one.coordinates.items() if k in OF_ROWS}
    entries = InfluenceMap(
        f"factor of rows of the {one.tensor}",
        one.problem,
        shared,
        np.ones(shared.shape),
        relative,
        likely,
        coordinates,
    )
    return _part(entries, np.isfinite(shared))


def steps(one: InfluenceMap) -> InfluenceMap | None:
    """Return the factor from each row to the next one of every weight.

    None if weights are no products, if there are no two rows of one source, or if the
    weight of a token in its own row is wrong: then the factors do not hold all that is
    wrong.
    """
    rows, sources = (one.coordinates.get(name) for name in ("row", "source"))
    if rows is None or sources is None or not one.is_product:
        return None
    if (one.wrong & (rows <= sources)).any():
        return None
    with np.errstate(all="ignore"):
        relative, likely = (x / abs(one.exact) for x in (one.bound, one.likely))
    others = [x for name, x in one.coordinates.items() if name != "row"]
    order = np.lexsort((rows, *others))
    before, after = order[:-1], order[1:]
    joined = np.all([x[before] == x[after] for x in others], axis=0)
    joined &= rows[after] == rows[before] + 1
    visible = (one.exact != 0) & (one.measured != 0) & (relative < 1 / 4)
    joined &= visible[before] & visible[after]
    before, after = before[joined], after[joined]
    if not len(after):
        return None
    exact = one.exact[after] / one.exact[before]
    return InfluenceMap(
        f"step from row to row of the {one.tensor}",
        one.problem,
        one.measured[after] / one.measured[before],
        exact,
        2 * abs(exact) * (relative[before] + relative[after]),
        2 * abs(exact) * (likely[before] + likely[after]),
        {name: x[after] for name, x in one.coordinates.items()},
    )


def lost(one: InfluenceMap) -> InfluenceMap | None:
    """Return a map in which all weights are right but those that are lost as a whole.

    A token that is lost does not erase either: the other products are too large, but
    none appears where there was none. Of a map that is wrong otherwise, the view is
    None: if another product is smaller, or if nothing is lost.
    """
    gone = abs(one.measured) <= one.bound
    others = one.wrong & ~gone
    larger = (abs(one.measured) > abs(one.exact)) & (one.exact != 0)
    if not one.is_product or not larger[others].all():
        return None
    if others.any() and not (one.wrong & gone).any():
        return None
    return replace(one, measured=np.where(others, one.exact, one.measured))


def _rows(one: InfluenceMap) -> tuple[Index, Real, Real, Index] | None:
    """Return the row of each entry; of each row its factor, how unsure, and an entry.

    None if the map has no rows, or if value channels have weights of their own.
    """
    if "row" not in one.coordinates or "source" not in one.coordinates:
        return None
    apart = [one.coordinates[name] for name in OF_ROWS if name in one.coordinates]
    _, first, row = np.unique(
        np.stack(apart), axis=1, return_index=True, return_inverse=True
    )
    row = row.reshape(-1)
    if _vary_in_channels(one):
        return None
    with np.errstate(all="ignore"):
        ratio = np.where(one.exact == 0, np.nan, one.measured / one.exact)
    whole = np.bincount(row) >= one.problem.shape.keys
    part = np.where(whole, COMMON, NEARLY_ALL)
    shared, unsure = _common(ratio, one, row, part)
    return row.astype(np.int64), shared, unsure, first.astype(np.int64)


def _vary_in_channels(one: InfluenceMap) -> bool:
    """Return True if each value channel has weights of its own."""
    problem = one.problem
    axes = {x.name: x.axes for x in problem.scope.operator.inputs}
    return any(
        axes[name].endswith("v") and name != "value" and (x != x[..., :1]).any()
        for name, x in problem.inputs.items()
    )


def _common(
    ratio: Real, one: InfluenceMap, row: Index, part: Real
) -> tuple[Real, Real]:
    """Return the factor that a part of the sources of each row shares; NaN without one.

    The second array is the part of it that rounding may have changed. Sources that are
    lost have no part in it. Of two, none is in the majority.
    """
    n = len(part)
    telling = _one_of_each_source(ratio, one, row)
    row, ratio = row[telling], ratio[telling]
    count = np.bincount(row, minlength=n)
    column = np.arange(len(row)) - (np.cumsum(count) - count)[row]
    table = np.full((2, n, count.max(initial=1)), np.inf)
    # The shortest interval that holds so many of them.
    many = np.maximum(np.ceil(part * count), 2).astype(np.int64)
    with np.errstate(all="ignore"):
        allowed = one.bound[telling] / abs(one.exact[telling])
        table[:, row, column] = ratio, allowed
        ratios, bounds = np.sort(table)
        begin = np.arange(table.shape[-1])
        end = np.minimum(begin + many[:, None], table.shape[-1]) - 1
        widths = np.take_along_axis(ratios, end, axis=1) - ratios
        complete = begin + many[:, None] <= count[:, None]
        middle = _middle(ratios, np.argmin(np.where(complete, widths, np.inf), 1), many)
        close = abs(ratio - middle[row]) <= 2 * allowed * abs(middle[row])
        unsure = _middle(bounds, np.zeros(n, np.int64), count)
    # Exact weights may round less than their multiples do.
    unsure += 2 * unit_roundoff(one.problem.scope.output_dtype)
    known = np.bincount(row, close, minlength=n) >= part * count
    known &= count >= FEWEST
    return np.where(known, middle, np.nan), np.where(known, unsure, np.nan)


def _one_of_each_source(ratio: Real, one: InfluenceMap, row: Index) -> Index:
    """Return the first entry that tells of each source of a row, row by row."""
    telling = np.flatnonzero(np.isfinite(ratio) & (ratio != 0) & ~one.silent)
    places = np.stack([one.coordinates["source"], row])[:, telling]
    order = np.lexsort(places)
    new = np.diff(places[:, order], prepend=NOWHERE).any(axis=0)
    return telling[order][new]


def _middle(table: Real, begin: Index, count: Index) -> Real:
    """Return the median of some neighbours of each row of a sorted table."""
    rows, last = np.arange(len(table)), table.shape[1] - 1
    low, high = (
        table[rows, np.clip(begin + part // 2, 0, last)] for part in (count - 1, count)
    )
    return np.asarray(np.where(low == high, low, (low + high) / 2))


def _starts(row: Index) -> Index:
    counts = np.bincount(row)
    return np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)


def _part(one: InfluenceMap, chosen: Flags) -> InfluenceMap | None:
    return one.part(chosen) if chosen.any() else None
