"""Whole replies of one call: its output, its states and its gradients, by name."""

from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from linkern.oracle import Bounded
from linkern.testing.checks.assertions import CheckedTarget, Real, compared
from linkern.testing.checks.registry import no_final_state, no_gradients, no_state
from linkern.testing.problems import strategies as draws
from linkern.testing.problems.context import Scope
from linkern.testing.problems.mixture import any_gradient, any_problem
from linkern.testing.problems.problem import Problem
from linkern.testing.target.protocol import Reply, in_float64

__all__ = ["Wrong", "any_request", "differing", "first_wrong", "observed", "results"]

# Of the state of an operator, in the order in which it is returned.
STATES = ("memory", "normalizer")


class Wrong(NamedTuple):
    """One result outside of its bound, and the dtype in which it is stored."""

    name: str
    got: Real
    expected: Bounded
    dtype: str


def any_request(scope: Scope, *, spans: bool = True) -> st.SearchStrategy[Problem]:
    """Return problems for all that a call can be asked for, `spans` among that."""
    gradients, spans = not no_gradients(scope), spans and not no_state(scope)
    problems = any_gradient(scope) if gradients else any_problem(scope)
    asked = ("gradients",) * gradients + ("output", "state") + ("spans",) * spans
    problems = draws.with_choice(problems, asked=asked)
    return draws.with_cuts(problems) if spans else problems


def observed(target: CheckedTarget, problem: Problem, **options: Any) -> Reply:
    """Call the target for its output, its state too, its gradients, or in spans.

    States are handed from span to span.
    """
    asked = problem.knobs["asked"]
    if asked == "gradients":
        options["cotangent"] = problem.cotangent
    elif asked == "spans":
        options["cuts"] = problem.knobs["cuts"]
    elif asked == "state" and not no_final_state(problem.scope):
        options["wants_state"] = True
    return target.observe(problem, **options)


def results(reply: Reply, problem: Problem) -> dict[str, Real]:
    """Return the arrays of a reply by name."""
    named = {} if reply.output is None else {"output": reply.output}
    named |= zip(STATES, reply.states or (), strict=False)
    gradients = zip(problem.inputs, reply.gradients or (), strict=False)
    named |= {f"gradient of the {name}": x for name, x in gradients}
    return {name: in_float64(x) for name, x in named.items()}


def differing(one: Reply, other: Reply, problem: Problem) -> str:
    """Return the name of the first result that two replies differ in; empty if none.

    The sign of a zero aside; a NaN is equal to a NaN.
    """
    pair = results(one, problem), results(other, problem)
    for name in dict.fromkeys(chain(*pair)):
        x, y = (some.get(name) for some in pair)
        if x is None or y is None or not np.array_equal(x, y, equal_nan=True):
            return name
    return ""


def first_wrong(reply: Reply, problem: Problem) -> Wrong | None:
    """Return the first result of a reply outside of its bound; None if all are right.

    Results of another shape than the exact ones are left to the laws that require it.
    """
    for name, got in results(reply, problem).items():
        for expected, dtype in _expected(name, problem):
            alike = got.shape == expected.output.shape
            if alike and not compared(got, expected, dtype).fine.all():
                return Wrong(name, got, expected, dtype)
    return None


def _expected(name: str, problem: Problem) -> list[tuple[Bounded, str]]:
    """Return what a named result must be, and its dtype; empty if it may be anything.

    The normalizer of an operator that is not normalised may.
    """
    scope = problem.scope
    if name == "output":
        return [(problem.solve(), scope.output_dtype)]
    if name in STATES:
        precisions = scope.contract.precisions(scope.dtype)
        declared = (precisions.state, precisions.normalizer)
        pairs = zip(STATES, problem.solve_state(), declared, strict=False)
        single = precisions.accumulator
        return [(exact, dtype or single) for n, exact, dtype in pairs if n == name]
    gradients = problem.solve_gradients()
    return [(gradients[name.removeprefix("gradient of the ")], scope.dtype)]
