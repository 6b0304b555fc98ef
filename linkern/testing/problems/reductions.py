"""Problems on which one operator is another: gates that are open, equal or zero."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import Reduction
from linkern.testing.problems.gates import with_numbers
from linkern.testing.problems.problem import Problem
from linkern.testing.spec.operators import OPERATORS

__all__ = ["inputs_of_other", "restricted"]


def restricted(problem: Problem, reduction: Reduction) -> Problem:
    """Return a problem that both operators describe."""
    for name, number in reduction.constants.items():
        problem = with_numbers(problem, name, np.asarray(number))
    changed = {name: problem.inputs[x].copy() for name, x in reduction.copies.items()}
    for name, source in reduction.spread.items():
        shape, first = problem.inputs[name].shape, problem.inputs[source][..., :1]
        changed[name] = np.broadcast_to(first, shape).copy()
    if reduction.small_scores:
        changed["query"] = _with_small_scores(problem)
    return problem.with_inputs(**changed)


def _with_small_scores(problem: Problem) -> NDArray[Any]:
    """Return queries, over a power of two, whose scores add up to one at most."""
    query, scope = problem.query.astype(np.float64), problem.scope
    scale = scope.contract.factor(scope.operator.scale, problem.sizes["k"])
    keys = np.cumsum(abs(problem.key.astype(np.float64)), axis=-2)
    largest = abs(scale) * (abs(query) * keys).sum(axis=-1).max(initial=0)
    _, exponent = np.frexp(largest)
    small = np.ldexp(query, -max(int(exponent), 0))
    return np.asarray(small.astype(problem.query.dtype))


def inputs_of_other(problem: Problem, reduction: Reduction) -> dict[str, NDArray[Any]]:
    """Return the inputs of the other operator for a restricted problem."""
    names = OPERATORS[reduction.to].names
    shared = {name: x for name, x in problem.inputs.items() if name in names}
    for name, source in reduction.first_channels.items():
        shared[name] = problem.inputs[source][..., 0]
    if reduction.without_values:
        shared["value"] = np.zeros_like(problem.value)
    return shared
