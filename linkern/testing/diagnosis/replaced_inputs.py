"""Counterfactuals: the operator with one input replaced, compared with what came back.

No product says that the rate of another head erases: its weights are sums over ways
through the recurrence. The oracle computes them as soon as the replacement is named.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from linkern.oracle import Bounded
from linkern.testing.diagnosis.index_sets.describe import IndexSet
from linkern.testing.diagnosis.replacements import (
    Change,
    at_edges,
    clamps,
    constants,
    replacements,
)
from linkern.testing.influence.maps import InfluenceMap, Real
from linkern.testing.problems import expected

__all__ = ["Replacement", "replaced"]

# Seconds of the processor after which no further replacement is tried.
BUDGET = 2.5
# Maps that are compared, and entries that tell one of them.
FEW, TELLING = 6, 24
# A replacement is worth its bound if most entries are this much closer to it.
CLOSER, MOST = 2.0**-8, 0.9
# Part of the error that is left after some of them, where a number fits at all.
PROMISING = 0.5
# Multiple of rounding by which a fitted number may be off.
FITTED = 4.0
# Digits of a number that is fitted.
DIGITS = 7
# Quantiles of an input that are tried as limits: most limits are close to its ends.
_TAIL = (0.0, 0.002, 0.006, 0.02, 0.06, 0.2)
LEVELS = (*_TAIL, 0.4, 0.6, *(1 - level for level in reversed(_TAIL)))
# Steps of the search between two of them.
FINE = 32
_LIMIT = re.compile(r"(.*) clamped at (.*) from (above|below)")
_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True)
class Replacement:
    """Operator with another input, that a target computes in place of its own.

    Parameters
    ----------
    text : str
        The replacement: ``beta of head 0 in place of beta``, ...
    change : callable
        Returns a call of the oracle with the replacement; None where there is none.
    kind : str
        The kind of formula, for its sentence.
    cost : float
        Its length in bits.
    slack : float
        Multiple of rounding by which entries may be off, where a number is fitted.
    where : str
        The entries of an input that a limit changes, in words.
    """

    text: str
    change: Change
    kind: str = "replaced"
    cost: float = 12.0
    slack: float = 1.0
    where: str = ""

    def predict(self, entries: InfluenceMap) -> Real:
        """Return the entries that the replacement stands for; NaN if not known."""
        return self.bounded(entries).output

    def bounded(self, entries: InfluenceMap) -> Bounded:
        """Return the same with their bounds."""
        call = self.change(entries.problem._oracle_call)
        with suppress(np.linalg.LinAlgError):  # No solution with such inputs.
            if call is not None and _is_whole(entries):
                whole = entries.problem.recalled(
                    ("replaced", self), lambda: expected.output(call)
                )
                pair = (whole.output, whole.bound)
                return Bounded(*(_picked(entries, x) for x in pair))
        nothing = np.full(entries.exact.shape, np.nan)
        return Bounded(nothing, nothing)

    def holds(self, entries: InfluenceMap) -> bool:
        """Return True if all wrong entries are as predicted, and tell so."""
        result, wrong = self.bounded(entries), entries.wrong
        with np.errstate(all="ignore"):
            rounding = self.slack * np.fmax(result.bound, entries.bound)
            close = abs(entries.measured - result.output) <= rounding
            changed = abs(result.output - entries.exact) > 8 * rounding
        return bool(close[wrong].all() and changed[wrong].sum() >= TELLING)


def replaced(
    maps: Sequence[InfluenceMap], place: IndexSet | None
) -> Replacement | None:
    """Return a replacement that predicts the wrong entries of some maps.

    Parameters
    ----------
    maps : sequence of InfluenceMap
        Maps of the output, those on fresh inputs among them.
    place : IndexSet or None
        The wrong entries in words. Inputs may be replaced at the edges of the chunks
        that it names, or by channels as far away as it says.
    """
    known = [one for one in maps if one.wrong.sum() >= TELLING and _is_whole(one)]
    known = [one for one in known if np.isfinite(one.measured[one.wrong]).all()]
    known = sorted(known, key=lambda one: one.exact.size)[:FEW]
    if not known:
        return None
    until = time.process_time() + BUDGET
    for candidate in _candidates(known[0], place, until):
        if _comes_close(candidate, known[0]) and all(
            candidate.holds(one) for one in known
        ):
            return candidate
    return None


def _candidates(
    one: InfluenceMap, place: IndexSet | None, until: float
) -> Iterator[Replacement]:
    """Yield replacements without numbers, then those at edges, then fitted numbers."""
    call = one.problem._oracle_call
    changes = dict(replacements(call, place.text if place else ""))
    for text, change in changes.items():
        yield Replacement(text, change)
        if time.process_time() > until:
            return
    if place is not None and place.chunk is not None:
        for token in ("first", "last"):
            where = f"at the {token} token of every chunk of {place.chunk}"
            for text, change in changes.items():
                yield Replacement(
                    f"{text} {where}", at_edges(change, place.chunk, token)
                )
                if time.process_time() > until:
                    return
    unit = np.linspace(-1, 1, 13)
    fitted = [(text, numbered, unit) for text, numbered in constants(call)]
    fitted += [
        (text, numbered, np.unique(np.quantile(x, LEVELS)))
        for text, numbered, x in clamps(call)
    ]
    for text, numbered, grid in fitted:
        if time.process_time() > until:
            return
        yield from _fitted(text, numbered, one, grid)


def _fitted(
    text: str, numbered: Callable[[float], Change], one: InfluenceMap, grid: Real
) -> Iterator[Replacement]:
    """Yield a replacement with the number that fits best, in few digits at first."""

    def candidate(number: float) -> Replacement:
        words = text.format(f"{number:.4g}")
        limit = _LIMIT.fullmatch(words)
        where = "where {} is {} {}".format(*limit.group(1, 3, 2)) if limit else ""
        return Replacement(words, numbered(number), slack=FITTED, where=where)

    errors = [_remaining(candidate(float(x)), one) for x in grid[1:-1]]
    if not errors or min(errors) >= 1:
        return
    best = int(np.argmin(errors))
    low, high = float(grid[best]), float(grid[best + 2])
    for steps in range(FINE):
        step = _GOLDEN * (high - low)
        left, right = (_remaining(candidate(x), one) for x in (high - step, low + step))
        low, high = (low, low + step) if left <= right else (high - step, high)
        if steps == FINE // 3 and min(left, right) > PROMISING:
            return
    for digits in range(1, DIGITS + 1):
        yield candidate(float(f"{(low + high) / 2:.{digits}g}"))


def _remaining(candidate: Replacement, one: InfluenceMap) -> float:
    """Return the part of all errors that a replacement leaves."""
    rest = _rest(candidate, one)[one.wrong]
    return float(np.nan_to_num(rest.sum() / one.error[one.wrong].sum(), nan=np.inf))


def _comes_close(candidate: Replacement, one: InfluenceMap) -> bool:
    """Return True if a replacement leaves hardly an error of most wrong entries."""
    rest = _rest(candidate, one) - 2 * one.bound
    return bool((rest <= CLOSER * one.error)[one.wrong].mean() >= MOST)


def _rest(candidate: Replacement, one: InfluenceMap) -> Real:
    """Return the distances from a replacement, which needs no bounds."""
    call = candidate.change(one.problem._oracle_call)
    with suppress(np.linalg.LinAlgError), np.errstate(all="ignore"):
        if call is not None:
            result = call.operator.evaluate(
                call.meant, call.scale, options=call.options()
            )
            return np.asarray(abs(one.measured - _picked(one, result.output)))
    return np.full(one.exact.shape, np.inf)


def _is_whole(one: InfluenceMap) -> bool:
    """Return True if entries are outputs of the problem of a map alone."""
    if one.tensor != "output":
        return False
    exact = _picked(one, one.problem.solve().output)
    return bool(((exact == one.exact) | np.isnan(one.exact)).all())


def _picked(one: InfluenceMap, whole: Real) -> Real:
    """Return the entries of an output that a map has, NaN where there are none."""
    names = ("batch", "head", "row", "value channel")
    index = np.stack([one.coordinates[name] for name in names])
    inside = ((index >= 0) & (index < np.reshape(whole.shape, (4, 1)))).all(0)
    return np.where(inside, whole[tuple(index * inside)], np.nan)
