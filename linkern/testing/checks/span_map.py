"""What a span of tokens does to a state, measured on unit states.

States are written by tokens of their own, with unit keys and gates that keep them as
they are, in a call before: so they can be handed over in any form.
"""

from dataclasses import dataclass

import numpy as np

from linkern.oracle import Bounded
from linkern.testing.checks.assertions import Trial
from linkern.testing.errors import DoesNotApply
from linkern.testing.problems.gates import as_declared
from linkern.testing.problems.problem import Problem

__all__ = ["PROBES", "WRITING", "Shard", "left_by", "measured"]

# How many calls may be made to measure what a shard does to a state.
PROBES = 4


@dataclass(frozen=True)
class Shard:
    """What a span of tokens does to a state: ``S -> M S + E``, with error bounds."""

    factor: Bounded
    added: Bounded

    def of(self, state: Bounded) -> Bounded:
        """Return what it makes of a state, and how far the parts may be off."""
        factor, added = self.factor, self.added
        bound = factor.bound @ (abs(state.output) + state.bound)
        bound = bound + abs(factor.output) @ state.bound + added.bound
        return Bounded(factor.output @ state.output + added.output, bound)


# Inputs under which unit keys write what they carry, and erase and forget nothing.
WRITING: dict[str, dict[str, float]] = {
    "simple_gla": {},
    "gla": {},
    "rwkv6": {},
    "rwkv7": {"removal_rate": 0.0},
    "dplr": {"a": 0.0, "b": 0.0},
    "iplr": {"a": 0.0, "b": 0.0},
    "delta_rule": {"beta": 1.0},
    "gated_delta_rule": {"beta": 1.0},
    "kda": {"beta": 1.0},
    "gdn2": {"erase_gate": 1.0, "write_gate": 1.0},
    "comba": {"auxiliary_key": 0.0, "beta": 1.0},
}


def left_by(trial: Trial, problem: Problem, cuts: tuple[int, ...] = ()) -> Bounded:
    """Return the memory that a target leaves, as far as it may be off once stored."""
    precisions = problem.scope.contract.precisions(problem.scope.dtype)
    stored = precisions.state or precisions.accumulator
    found = trial.split(problem, cuts).states
    if found is None:
        reason = "its state is not the memory of the operator"
        raise DoesNotApply(reason)
    bound = problem.solve_state()[0].once_stored(stored)
    return Bounded(found[0].astype(np.float64), bound)


def _begun(problem: Problem, columns: slice) -> Problem:
    """Put tokens in front that write the unit vectors of some rows of the state."""
    count, written = problem.sizes["k"], WRITING[problem.scope.operator.name]
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
        elif one.name == "log_decay":
            front[...] = as_declared(problem.scope, np.zeros(1))
        elif one.name in written:
            front[...] = written[one.name]
        inputs[one.name] = np.concatenate([front, x], axis=axis)
    return problem.with_inputs(**inputs)


def measured(trial: Trial, problem: Problem) -> Shard:
    """Measure what a span does to nothing, and to each unit vector of a state."""
    added, sizes = left_by(trial, problem), problem.sizes
    outputs, bounds = [], []
    for first in range(0, sizes["k"], sizes["v"]):
        columns = slice(first, min(first + sizes["v"], sizes["k"]))
        width = columns.stop - columns.start
        found = left_by(trial, _begun(problem, columns), (sizes["k"],))
        outputs.append((found.output - added.output)[..., :width])
        bounds.append((found.bound + added.bound)[..., :width])
    factor = Bounded(np.concatenate(outputs, -1), np.concatenate(bounds, -1))
    return Shard(factor, added)
