"""Other divisors of rows that are divided by the size of a normaliser, by at least 1.

A kernel keeps numerator and normaliser over ``e^m``, the largest weight of a row, and
compares with ``e^-m`` there: with 1, its floor is ``e^m``. Which one a row has depends
on two numbers, so no product of quantities says it.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from linkern.testing.diagnosis.alternatives.changes import meaning
from linkern.testing.diagnosis.alternatives.replaced_inputs import is_whole, picked
from linkern.testing.diagnosis.factors.factor import Factor, by_rule
from linkern.testing.influence.maps import InfluenceMap, Real
from linkern.testing.problems.problem import Problem

__all__ = ["other_floor"]

# Divisors by their words, of the sum of a row and the logarithm of its largest weight.
DIVISORS: dict[str, Callable[[Real, Real], Real]] = {
    "max(|q . n|, e^m), m the largest logarithm of the row": (
        lambda below, largest: np.maximum(abs(below), np.exp(largest))
    ),
    "|q . n| alone": lambda below, _: abs(below),
    "max(q . n, 1)": lambda below, _: np.maximum(below, 1.0),
    "|q . n| + 1": lambda below, _: abs(below) + 1,
}
# With gates that are smaller by so much, all rows are divided by 1.
SHIFT = 300.0
# Multiple of rounding that entries may be off, entries that tell, bits of the words.
SLACK, TELLING, COST = 4.0, 24, 12.0


def other_floor(maps: Sequence[InfluenceMap]) -> Factor | None:
    """Return the divisor that predicts all wrong entries of outputs.

    Parameters
    ----------
    maps : sequence of InfluenceMap
        Maps of the output, those on fresh inputs among them.
    """
    wrong = [one.part(one.wrong) for one in maps if one.wrong.any()]
    if not wrong or not wrong[0].problem.scope.operator.floored:
        return None
    known = [one for one in wrong if one.tensor == "output" and is_whole(one)]
    if sum(one.exact.size for one in known) < TELLING:
        return None
    for words, divisor in DIVISORS.items():
        rule = partial(_predicted, divisor)
        if all(_holds(rule(one), one) for one in known):
            return by_rule("divided", words, rule, COST)
    return None


def _holds(predicted: Real, one: InfluenceMap) -> bool:
    """Return True if all entries are as predicted.

    What rounding does to a sum counts twice where the sum is small: its quotient is
    larger, and so is the relative error of the sum.
    """
    with np.errstate(all="ignore"):
        grown = np.fmax(1.0, abs(predicted / one.exact)) ** 2
        close = abs(one.measured - predicted) <= SLACK * grown * one.bound
    return bool(close.all())


def _predicted(divisor: Callable[[Real, Real], Real], one: InfluenceMap) -> Real:
    """Return the entries with another divisor; NaN where that is not known."""
    if one.tensor != "output" or not is_whole(one):
        return np.full(one.exact.shape, np.nan)
    above, below, largest = one.problem.recalled(
        "numerators and divisors", lambda: _rows(one.problem)
    )
    with np.errstate(all="ignore"):
        output = above / divisor(below, largest)
    return picked(one, output)


def _rows(problem: Problem) -> tuple[Real, Real, Real]:
    """Return the numerator of each row, its sum, and its largest logarithm."""
    call = problem.oracle_call
    value = np.asarray(call.meant["value"])
    gate, log_decay = (
        np.zeros(value.shape[:-1]) if x is None else x
        for x in (call.meant.get(name) for name in ("input_gate", "log_decay"))
    )

    def undivided(values: Real) -> Real:
        inputs = {"value": values, "input_gate": gate - SHIFT}
        output = meaning(call, inputs).evaluate().output
        return np.asarray(output * np.exp(SHIFT))

    largest, m = np.empty(gate.shape), np.full(gate.shape[:-1], -np.inf)
    for t in range(gate.shape[-1]):
        m = np.maximum(m + log_decay[..., t], gate[..., t])
        largest[..., t] = m
    return undivided(value), undivided(np.ones_like(value)), largest[..., None]
