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
# Part of a row whose common factor is that of its sum; and if not all of its sources
# are in the map, which may be those of a fault.
COMMON = 0.5
NEARLY_ALL = 0.9
# Sources of a row that has a factor.
FEWEST = 3
# The source of entries that say nothing.
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
    """Return the right weights of a map and those that are lost as a whole.

    A token that is lost does not erase either: the other products are too large, but
    none appears where there was none. Of a map that is wrong otherwise, the view is
    None.
    """
    gone = abs(one.measured) <= one.bound
    others = one.wrong & ~gone
    larger = (abs(one.measured) > abs(one.exact)) & (one.exact != 0)
    if not one.is_product or not larger[others].all():
        return None
    return _part(one, ~others)


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
    shared, unsure = np.full((2, len(first)), np.nan)
    order = np.argsort(row, kind="stable")
    for k, entries in enumerate(np.split(order, _starts(row)[1:])):
        part = NEARLY_ALL if len(entries) < one.problem.shape.keys else COMMON
        shared[k], unsure[k] = _common(ratio[entries], one, entries, part)
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
    ratio: Real, one: InfluenceMap, entries: Index, part: float
) -> tuple[float, float]:
    """Return the factor that this part of a row's sources shares; NaN without one.

    The second number is the part of it that rounding may have changed. Sources that are
    lost have no part in it. Of two, none is in the majority.
    """
    telling = np.isfinite(ratio) & (ratio != 0) & ~one.silent[entries]
    sources = one.coordinates["source"][entries]
    _, first = np.unique(np.where(telling, sources, NOWHERE), return_index=True)
    telling = telling & np.isin(np.arange(len(ratio)), first)
    ratios = np.sort(ratio[telling])
    if len(ratios) < FEWEST:
        return np.nan, np.nan
    # The shortest interval that holds so many of them.
    many = max(int(np.ceil(part * len(ratios))), 2)
    widths = ratios[many - 1 :] - ratios[: len(ratios) - many + 1]
    at = int(np.argmin(widths))
    middle = float(np.median(ratios[at : at + many]))
    with np.errstate(all="ignore"):
        allowed = one.bound[entries][telling] / abs(one.exact[entries][telling])
        close = abs(ratio[telling] - middle) <= 2 * allowed * abs(middle)
    # Exact weights may round less than their multiples do.
    stored = unit_roundoff(one.problem.scope.output_dtype)
    unsure = float(np.median(allowed)) + 2 * stored
    return (middle, unsure) if close.mean() >= part else (np.nan, np.nan)


def _starts(row: Index) -> Index:
    counts = np.bincount(row)
    return np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)


def _part(one: InfluenceMap, chosen: Flags) -> InfluenceMap | None:
    return one.part(chosen) if chosen.any() else None
