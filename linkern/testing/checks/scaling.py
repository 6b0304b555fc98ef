"""Laws of scaling by powers of two: they commute with every rounding, so bitwise."""

import numpy as np
from hypothesis import strategies as st

from linkern.testing.checks.assertions import CheckedTarget
from linkern.testing.checks.registry import (
    check,
    not_homogeneous,
    not_linear_in_values,
)
from linkern.testing.problems import strategies as draws
from linkern.testing.problems.context import Scope
from linkern.testing.problems.mixture import any_problem
from linkern.testing.problems.problem import Problem

__all__ = ["scaling_of_keys", "scaling_of_values"]

# Exponents that neither overflow nor underflow in between, by dtype.
_EXPONENTS = {
    "float16": 3,
    "bfloat16": 60,
    "tfloat32": 60,
    "float32": 60,
    "float64": 400,
}


def _scaled(scope: Scope) -> st.SearchStrategy[Problem]:
    return any_problem(scope, "positive" if "float16" in scope.stages else "random")


def _scalable(problem: Problem) -> bool:
    """Return True if no scaled sum leaves the normal numbers."""
    narrow = "float16" in problem.scope.stages
    return problem.sort in (("positive",) if narrow else ("random", "integers"))


def _powers_of_two(scope: Scope) -> tuple[float, ...]:
    # Accumulators wider than the inputs do not widen what inputs can hold.
    reach = min(_EXPONENTS[name] for name in scope.stages)
    return tuple(2.0**n for n in (1, -1, reach // 2, -(reach // 2), reach, -reach))


@check(
    "scaling the values by a power of two, or negating them, does the same to the "
    "output, bitwise",
    problems=_scaled,
    judges=_scalable,
    unless=not_linear_in_values,
    share=0.35,
    relation=True,
)
def scaling_of_values(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: narrow casts of values, absolute thresholds, clipping.

    Fix: Keep values, and sums of them, in a dtype with the range of the input: float16
    overflows at 65504. Remove clamps and thresholds that compare values with a
    constant.
    """
    factors = (-1.0, *_powers_of_two(problem.scope))
    plain, *outputs = target.runs(problem, *_scalings(problem, "value", factors))
    for factor, output in zip(factors, outputs, strict=True):
        message = f"scaling the values by {factor:g} did not scale the output by it"
        target.require_same(output, factor * plain, problem, message)


def _homogeneous(scope: Scope) -> tuple[str, ...]:
    if scope.operator.feature_map:
        return ("key", "query")
    return tuple(name for name in ("key", "query") if name in scope.linear)


@check(
    "scaling all keys, or all queries, by a power of two leaves a normalised output "
    "unchanged (and scales one that is not normalised), bitwise",
    problems=lambda scope: draws.with_choice(
        _scaled(scope), inputs=_homogeneous(scope)
    ),
    judges=_scalable,
    unless=not_homogeneous,
    relation=True,
)
def scaling_of_keys(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: any epsilon or clamp in the quotient, however small.

    Fix: Remove what is added to the denominator, to a norm or to the scores: an
    epsilon, a clamp, a floor. If it is meant, declare `eps` and `eps_mode`, or
    `l2norm`.
    """
    name, factors = problem.knobs["inputs"], _powers_of_two(problem.scope)
    plain, *outputs = target.runs(problem, *_scalings(problem, name, factors))
    for factor, output in zip(factors, outputs, strict=True):
        expected = plain if problem.scope.normalised else factor * plain
        message = f"scaling the {name} by {factor:g} changed more than it should"
        target.require_same(output, expected, problem, message)


def _scalings(problem: Problem, name: str, factors: tuple[float, ...]) -> list[Problem]:
    """Scale an input by powers of two in float64, and come back to its dtype."""
    x = problem.inputs[name]
    wide = x.astype(np.float64)
    return [problem.with_inputs(**{name: (wide * n).astype(x.dtype)}) for n in factors]
