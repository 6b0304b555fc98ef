"""Counterfactuals: the operator with one input replaced, compared with what came back.

No product says that the rate of another head erases: its weights are sums over ways
through the recurrence. The oracle computes them as soon as the replacement is named.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from math import prod

import numpy as np

from linkern.oracle import Bounded
from linkern.testing.diagnosis.alternatives.between_chunks import between_chunks
from linkern.testing.diagnosis.alternatives.changes import Change
from linkern.testing.diagnosis.alternatives.limits import clamps, other_lengths
from linkern.testing.diagnosis.alternatives.parts import other_parts
from linkern.testing.diagnosis.alternatives.programs import first_tokens
from linkern.testing.diagnosis.alternatives.replacements import replacements
from linkern.testing.diagnosis.factors.factor import Factor, by_rule
from linkern.testing.diagnosis.sizes import CHUNKS
from linkern.testing.influence.maps import AXES, InfluenceMap, Real
from linkern.testing.influence.readings import STATES
from linkern.testing.problems import expected

__all__ = ["is_whole", "picked", "replaced"]

MEMORY = STATES[0]

# Candidates tried, times the tokens of each. It is no time limit, so that what is said
# does not depend on the speed of a machine.
TOKENS = 60_000
# Entries that tell a map, and bits of a replacement.
TELLING, COST = 24, 12.0
# Part of the error that hardly matters, and that a first look may leave; multiple of
# rounding that a limit may be off.
CLOSE, ROUGH, SLACK = 0.02, 0.25, 4.0
# Part of the error that each digit of a limit may leave: of the first numbers none
# needs to fit, and the next ones may be off by a factor of three.
PROMISING = 1.0, 0.95, 0.5
# Digits of a limit, and numbers that are tried for each of them.
DIGITS, STEPS = 9, 13
# Quantiles of an input that are tried as limits: most limits are close to its ends.
_TAIL = (0.0, 0.002, 0.006, 0.02, 0.06, 0.2)
LEVELS = (*_TAIL, 0.4, 0.6, *(1 - level for level in reversed(_TAIL)))


def replaced(maps: Sequence[InfluenceMap]) -> Factor | None:
    """Return a replacement that predicts the wrong entries of some maps.

    Parameters
    ----------
    maps : sequence of InfluenceMap
        Maps of the output or of the final memory, those on fresh inputs among them.
    """
    parts = [x.part(x.wrong) for x in maps if x.wrong.sum() >= TELLING and is_whole(x)]
    if not parts or not all(np.isfinite(one.measured).all() for one in parts):
        return None
    parts.sort(key=_cost)
    rows = (_first_rows(one) for one in parts)
    first, tokens = min(rows, key=lambda one: _cost(one[0], one[1]))
    for text, change, where in islice(_candidates(parts[0]), TOKENS // tokens):
        if _left(partial(first_tokens, change, tokens), first) >= ROUGH:
            continue
        bounded = partial(_bounded, change)
        if _left(change, parts[0]) < CLOSE and _holds(bounded, parts):
            rule = partial(_entries, bounded)
            return by_rule("replaced", text, rule, COST, where=where)
    return None


def _first_rows(one: InfluenceMap) -> tuple[InfluenceMap, int]:
    """Return entries of the first rows that tell a candidate, and the tokens of these.

    Their errors are so large that rounding is a small part of them. Where rows
    depend on later tokens, or there are none, all entries and tokens are returned.
    """
    length = one.problem.length
    if one.tensor == MEMORY or not one.problem.scope.operator.causal:
        return one, length
    order = np.argsort(one.coordinates["row"], kind="stable")
    rows = one.coordinates["row"][order]
    certain = ROUGH * np.cumsum(one.error[order]) > 2 * np.cumsum(one.bound[order])
    certain &= np.arange(len(rows)) >= TELLING
    if not certain.any():
        return one, length
    tokens = int(rows[np.argmax(certain)]) + 1
    return one.part(one.coordinates["row"] < tokens), tokens


def _cost(one: InfluenceMap, tokens: int | None = None) -> int:
    """Return the numbers that the oracle computes for some tokens of a map."""
    problem, operator = one.problem, one.problem.scope.operator
    memory = prod(operator.state_shapes(problem.sizes)[0])
    length = problem.length if tokens is None else tokens
    return length * prod(problem.inputs["value"].shape[:-2]) * memory


def _candidates(one: InfluenceMap) -> Iterator[tuple[str, Change, str]]:
    """Yield replacements without numbers, then those with limits that fit best."""
    call = one.problem.oracle_call
    if one.tensor == MEMORY:
        for text, change in other_lengths(call):
            yield text, change, ""
    first = int(min(one.coordinates.get("row", [0]), default=0))
    edges = between_chunks(call, first) if first in CHUNKS else ()
    for text, change in chain(replacements(call), edges, other_parts(call)):
        yield text, change, ""
    for name, side, limited, x in clamps(call):
        grid = np.unique(np.quantile(x, LEVELS))
        for digits in range(1, DIGITS + 1):
            errors = [_left(limited(float(limit)), one) for limit in grid]
            best = int(np.argmin(errors))
            if errors[best] > PROMISING[min(digits, len(PROMISING)) - 1]:
                break
            number = float(f"{grid[best]:.{digits}g}")
            words = f"{name} clamped at {number:.4g} from {side}"
            where = f"where {name} is {side} {number:.4g}"
            yield words, limited(number), where
            ends = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
            grid = np.linspace(*ends, STEPS)


def _left(change: Change, one: InfluenceMap) -> float:
    """Return the part of all errors that a replacement leaves."""
    try:
        result = change(one.problem.oracle_call).evaluate()
    except np.linalg.LinAlgError:  # No solution with such inputs.
        return np.inf
    whole = result.state[0] if one.tensor == MEMORY else result.output
    with np.errstate(all="ignore"):
        left = abs(one.measured - picked(one, whole)).sum() / one.error.sum()
    return float(np.nan_to_num(left, nan=np.inf))


def _bounded(change: Change, one: InfluenceMap) -> Bounded:
    """Return the result that a map is of, after a change, with its bound.

    It is computed once for each problem: of a change that is tried with all maps.
    """
    call, is_memory = change(one.problem.oracle_call), one.tensor == MEMORY

    def result() -> Bounded:
        return expected.states(call)[0] if is_memory else expected.output(call)

    return one.problem.recalled(("changed", change, is_memory), result)


def _entries(bounded: Callable[[InfluenceMap], Bounded], one: InfluenceMap) -> Real:
    """Return the entries of a map after a change; NaN if there are none."""
    with suppress(np.linalg.LinAlgError):  # No solution with such inputs.
        if is_whole(one):
            return picked(one, bounded(one).output)
    return np.full(one.exact.shape, np.nan)


def _holds(
    bounded: Callable[[InfluenceMap], Bounded], parts: Sequence[InfluenceMap]
) -> bool:
    """Return True if all entries are as after a change, and most maps tell so.

    One of large bounds may not: then it does not speak against the change either.
    """
    telling = 0
    for one in parts:
        result = bounded(one)
        output, bound = picked(one, result.output), picked(one, result.bound)
        with np.errstate(all="ignore"):
            rounding = SLACK * np.fmax(bound, one.bound)
            close = abs(one.measured - output) <= rounding
            changed = abs(output - one.exact) > 8 * rounding
        if not close.all():
            return False
        telling += changed.sum() >= TELLING
    return 2 * telling > len(parts)


def is_whole(one: InfluenceMap) -> bool:
    """Return True if entries are outputs of the problem of a map alone, or its memory.

    A memory that a target keeps over a weight of its own is not that of the oracle.
    """
    if one.tensor not in ("output", MEMORY):
        return False
    is_memory = one.tensor == MEMORY
    whole = one.problem.solve_state()[0] if is_memory else one.problem.solve()
    exact = picked(one, whole.output)
    return bool(((exact == one.exact) | np.isnan(one.exact)).all())


def picked(one: InfluenceMap, whole: Real) -> Real:
    """Return the entries of a result that a map has, NaN where there are none."""
    names: tuple[str, ...] = ("row", "value channel")
    if one.tensor == MEMORY:
        axes = one.problem.scope.operator.state[0]
        names = tuple(AXES.get(axis, "feature") for axis in axes)
    names = "batch", "head", *names
    if not {*names} <= {*one.coordinates}:
        return np.full(one.exact.shape, np.nan)
    index = np.stack([one.coordinates[name] for name in names])
    inside = ((index >= 0) & (index < np.reshape(whole.shape, (-1, 1)))).all(0)
    return np.where(inside, whole[tuple(index * inside)], np.nan)
