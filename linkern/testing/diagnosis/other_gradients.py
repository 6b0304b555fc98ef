"""Gradients in place of the right ones: without a part, over heads, of another input.

A key that is written and erased along has two ways back, of which a backward pass may
lose one. Each is the oracle's gradient without what comes back to one operand of the
recurrence; no product of quantities is a sum of ways through it.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from linkern.oracle import Bounded
from linkern.testing.diagnosis.factors.factor import Factor
from linkern.testing.influence.gradient_places import DENOMINATOR, INSIDE, NAMES
from linkern.testing.influence.maps import AXES, Index, InfluenceMap, Real
from linkern.testing.influence.scenes import per_token
from linkern.testing.problems.expected import gradient_without
from linkern.testing.problems.problem import Problem

__all__ = ["other_gradient"]

# Returns a gradient of an input in a problem, and how far rounding may move it.
Gradient = Callable[[Problem, str], Bounded]

# Parts of gradients by the operand of the recurrence that they come back to.
PARTS = {
    "erase": "its part through what an erase reads",
    "key": "its part through the key that is written",
    "value": "its part through the value that is written",
    "log_decay": "its part through the decay",
    "query": "its part through what reads the memory",
}
# Axes over which a gradient may be added up or averaged.
OVER = {"heads": "gh", "the batch": "b"}
# Entries that tell a map, multiple of rounding that entries may be off, bits of words.
TELLING, SLACK, COST = 24, 4.0, 10.0
# Coordinates of entries in several calls or sequences, of which no oracle call is one.
ELSEWHERE = {"span", "sequence"}


def other_gradient(maps: Sequence[InfluenceMap]) -> Factor | None:
    """Return the gradient that is in place of another in all of its wrong entries.

    Parameters
    ----------
    maps : sequence of InfluenceMap
        Maps of one gradient with wrong entries, those on fresh inputs among them.
    """
    known = [one.part(one.wrong) for one in maps if one.wrong.any() and _is_whole(one)]
    known.sort(key=lambda one: one.exact.size)
    if sum(one.exact.size for one in known) < TELLING:
        return None
    for kind, words, gradient in _candidates(known[0].problem, _name(known[0])):
        if all(_holds(gradient, one) for one in known):
            rule = partial(_predicted, gradient)
            return Factor(kind, 1.0, {}, words, cost=COST, rule=rule)
    return None


def _candidates(problem: Problem, name: str) -> Iterator[tuple[str, str, Gradient]]:
    """Yield the kind of a factor, its words, and the gradient that it stands for."""
    shape, axes = problem.inputs[name].shape, problem.scope.operator.input(name).axes
    for other, x in problem.inputs.items():
        if other != name and x.shape == shape:
            yield "instead", f"the gradient of {other}", partial(_of_another, other)
    for words, letters in OVER.items():
        axis = next((axes.index(a) for a in letters if a in axes), None)
        if axis is not None and shape[axis] > 1:
            yield "instead", f"its sum over {words}", partial(_over, np.sum, axis)
            yield "instead", f"its mean over {words}", partial(_over, np.mean, axis)
    for part, words in PARTS.items():
        yield "partial", words, partial(_without, part)


def _of_another(other: str, problem: Problem, _: str) -> Bounded:
    return problem.solve_gradients()[other]


def _over(
    combine: Callable[..., Real], axis: int, problem: Problem, name: str
) -> Bounded:
    exact = problem.solve_gradients()[name]
    both = (combine(x, axis=axis, keepdims=True) for x in (exact.output, exact.bound))
    return Bounded(*(np.broadcast_to(x, exact.output.shape) for x in both))


def _without(part: str, problem: Problem, name: str) -> Bounded:
    assert problem.cotangent is not None
    cotangent = problem.cotangent.astype(np.float64)
    left = gradient_without(problem._oracle_call, name, cotangent, part)
    return Bounded(left, problem.solve_gradients()[name].bound)


def _name(one: InfluenceMap) -> str:
    """Return the input that a map has the gradient of; empty if there is none."""
    inputs = one.problem.inputs
    known = {NAMES[k].format(x): x for k in (INSIDE, DENOMINATOR) for x in inputs}
    return known.get(one.tensor, "")


def _is_whole(one: InfluenceMap) -> bool:
    """Return True if entries are of a gradient in one call of one sequence."""
    return bool(_name(one)) and not ELSEWHERE & {*one.coordinates}


def _holds(gradient: Gradient, one: InfluenceMap) -> bool:
    """Return True if entries are as predicted, and most not as they should be."""
    index, other = _index(one), gradient(one.problem, _name(one))
    with np.errstate(all="ignore"):
        rounding = SLACK * np.fmax(other.bound[index], one.bound)
        close = abs(one.measured - other.output[index]) <= rounding
        changed = abs(other.output[index] - one.exact) > rounding
    return bool(close.all() and 2 * changed.sum() > len(close))


def _predicted(gradient: Gradient, one: InfluenceMap) -> Real:
    """Return the entries of another gradient; NaN where there is none."""
    if not _is_whole(one):
        return np.full(one.exact.shape, np.nan)
    return np.asarray(gradient(one.problem, _name(one)).output[_index(one)])


def _index(one: InfluenceMap) -> tuple[Index, ...]:
    """Return the indices of entries in the gradient of their input."""
    problem, name, known = one.problem, _name(one), one.coordinates
    index = []
    for letter in problem.scope.operator.input(name).axes:
        if letter in "ts":
            at = known["row" if name == "query" else "source"]
            each = per_token(problem) if letter == "s" else 1
            index.append(at if each == 1 else at * each + known["micro-step"])
        else:
            place = {"b": "batch", "g": "head", "h": "head"}.get(letter)
            index.append(known[place or AXES[letter]])
    return tuple(index)
