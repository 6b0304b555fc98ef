"""Affine map of a span of tokens on the state, measured on unit states.

Unit states are written by extra tokens in front, with unit keys and neutral gates, so
that a target may hand its state over in any form.
"""

from dataclasses import dataclass

import numpy as np

from linkern.oracle import Bounded
from linkern.testing.checks.assertions import CheckedTarget
from linkern.testing.errors import DoesNotApply, skipped
from linkern.testing.problems.gates import as_declared
from linkern.testing.problems.problem import Problem
from linkern.testing.target.protocol import in_float64

__all__ = ["PROBES", "MeasuredMap", "final_memory", "measure_span_map"]

# Calls that one measurement may take.
PROBES = 4


@dataclass(frozen=True)
class MeasuredMap:
    """Affine map of a span of tokens on the state, ``S -> M S + E``, with bounds."""

    factor: Bounded
    added: Bounded

    def apply(self, state: Bounded) -> Bounded:
        """Return the image of a state, with the bounds of both propagated."""
        factor, added = self.factor, self.added
        bound = factor.bound @ (abs(state.output) + state.bound)
        bound = bound + abs(factor.output) @ state.bound + added.bound
        return Bounded(factor.output @ state.output + added.output, bound)


def final_memory(
    target: CheckedTarget, problem: Problem, cuts: tuple[int, ...] = ()
) -> Bounded:
    """Return the final memory of a target, with the bound of its stored numbers."""
    precisions = problem.scope.contract.precisions(problem.scope.dtype)
    stored = precisions.state or precisions.accumulator
    states = target.split(problem, cuts).states
    if states is None:
        reason = "its state is not the memory of the operator"
        raise DoesNotApply(skipped(reason, "return the memory as its state"))
    bound = problem.solve_state()[0].once_stored(stored)
    return Bounded(in_float64(states[0]), bound)


def _after_unit_state(problem: Problem, columns: slice) -> Problem:
    """Put tokens in front that write unit vectors to some rows of the state."""
    count, written = problem.sizes["k"], problem.scope.operator.unit_writes
    assert written is not None
    inputs = {}
    for one in problem.scope.operator.inputs:
        x = problem.inputs[one.name]
        axis = one.token_axis
        if axis is None:
            inputs[one.name] = x
            continue
        front = np.zeros((*x.shape[:axis], count, *x.shape[axis + 1 :]), x.dtype)
        if one.name == "key":
            front[...] = np.eye(count)
        elif one.name == "value":
            rows = np.arange(count)[columns]
            front[..., rows, np.arange(len(rows))] = 1
        else:
            number = np.full(1, written.get(one.name, 0.0))
            front[...] = as_declared(problem.scope, number, one.name)
        inputs[one.name] = np.concatenate([front, x], axis=axis)
    return problem.with_inputs(**inputs)


def measure_span_map(target: CheckedTarget, problem: Problem) -> MeasuredMap:
    """Measure the map of a span on the zero state and on each unit state."""
    added, sizes = final_memory(target, problem), problem.sizes
    outputs, bounds = [], []
    for first in range(0, sizes["k"], sizes["v"]):
        columns = slice(first, min(first + sizes["v"], sizes["k"]))
        width = columns.stop - columns.start
        memory = final_memory(
            target, _after_unit_state(problem, columns), (sizes["k"],)
        )
        outputs.append((memory.output - added.output)[..., :width])
        bounds.append((memory.bound + added.bound)[..., :width])
    factor = Bounded(np.concatenate(outputs, -1), np.concatenate(bounds, -1))
    return MeasuredMap(factor, added)
