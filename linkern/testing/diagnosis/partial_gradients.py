"""Gradients that lack a part: what comes back along one of the ways of an input.

A key that is written and erased along has two, a log-decay that also scales what is
written has two. Each is the oracle's gradient without what comes back to one operand of
the recurrence; no product of quantities is a sum of ways through it.
"""

import functools
from collections.abc import Sequence

import numpy as np

from linkern.testing.diagnosis.factors.factor import Factor
from linkern.testing.influence.gradient_places import NAMES
from linkern.testing.influence.maps import AXES, InfluenceMap, Real
from linkern.testing.influence.scenes import per_token
from linkern.testing.problems.expected import gradient_without

__all__ = ["partial"]

# Parts of gradients by the operand of the recurrence that they come back to.
PARTS = {
    "erase": "its part through what an erase reads",
    "key": "its part through the key that is written",
    "value": "its part through the value that is written",
    "log_decay": "its part through the decay",
    "query": "its part through what reads the memory",
}
# Entries that tell a map, multiple of rounding that entries may be off, bits of a part.
TELLING, SLACK, COST = 24, 4.0, 10.0
# Coordinates of entries in several calls or sequences, of which no oracle call is one.
ELSEWHERE = {"span", "sequence"}


def partial(maps: Sequence[InfluenceMap]) -> Factor | None:
    """Return the part that a gradient lacks in all of its wrong entries.

    Parameters
    ----------
    maps : sequence of InfluenceMap
        Maps of one gradient with wrong entries, those on fresh inputs among them.
    """
    known = [one for one in maps if one.wrong.sum() >= TELLING and _is_whole(one)]
    known = sorted((one.part(one.wrong) for one in known), key=lambda x: x.exact.size)
    if not known:
        return None
    for part, words in PARTS.items():
        rule = functools.partial(_predicted, part)
        if all(_holds(rule(one), one) for one in known):
            return Factor("partial", 1.0, {}, words, cost=COST, rule=rule)
    return None


def _name(one: InfluenceMap) -> str:
    """Return the input that a map has the gradient of; empty if there is none."""
    known = {NAMES[0].format(name): name for name in one.problem.inputs}
    return known.get(one.tensor, "")


def _is_whole(one: InfluenceMap) -> bool:
    """Return True if entries are of a gradient in one call of one sequence."""
    return bool(_name(one)) and not ELSEWHERE & {*one.coordinates}


def _holds(predicted: Real, one: InfluenceMap) -> bool:
    """Return True if entries are as predicted, and clearly not as they should be."""
    with np.errstate(all="ignore"):
        close = abs(one.measured - predicted) <= SLACK * one.bound
        changed = abs(predicted - one.exact) > SLACK * one.bound
    return bool(close.all() and changed.sum() >= TELLING)


def _predicted(part: str, one: InfluenceMap) -> Real:
    """Return the entries of a gradient without a part; NaN where none is known."""
    problem, name = one.problem, _name(one)
    if not _is_whole(one) or problem.cotangent is None:
        return np.full(one.exact.shape, np.nan)
    cotangent = problem.cotangent.astype(np.float64)
    call, known = problem._oracle_call, one.coordinates
    whole = gradient_without(call, name, cotangent, part)
    index = []
    for letter in problem.scope.operator.input(name).axes:
        if letter in "ts":
            at = known["row" if name == "query" else "source"]
            if letter == "s":
                at = at * per_token(problem) + known.get("micro-step", 0)
        else:
            at = known[
                {"b": "batch", "g": "head", "h": "head"}.get(letter) or AXES[letter]
            ]
        index.append(at)
    return np.asarray(whole[tuple(index)])
