"""The registry of checks: what a check is, and when a law does not apply."""

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st

from linkern.testing import strategies as draws
from linkern.testing.judging import Trial
from linkern.testing.problem import Problem, Scope

__all__ = [
    "CHECKS",
    "Check",
    "check",
    "no_chunk_size",
    "no_exact_features",
    "no_forms",
    "no_heads",
    "no_short_lengths",
    "not_causal",
    "not_homogeneous",
    "not_normalised",
]

Law = Callable[[Trial, Problem], None]


def _always(scope: Scope) -> str | None:
    del scope
    return None


@dataclass(frozen=True)
class Check:
    """One law.

    Parameters
    ----------
    name : str
        Public name.
    statement : str
        The law in one line.
    law : callable
        ``law(trial, problem)``; raises `Violation`.
    problems : callable
        ``problems(scope)``: a Hypothesis strategy.
    unsupported : callable
        ``unsupported(scope)``: why the law does not apply, or None if it does.
    """

    name: str
    statement: str
    law: Law
    problems: Callable[[Scope], st.SearchStrategy[Problem]]
    unsupported: Callable[[Scope], str | None]


CHECKS: dict[str, Check] = {}


def check(
    statement: str,
    *,
    problems: Callable[[Scope], st.SearchStrategy[Problem]],
    unsupported: Callable[[Scope], str | None] = _always,
) -> Callable[[Law], Law]:
    """Register a law under the name of its function."""

    def register(law: Law) -> Law:
        name = law.__name__
        assert name not in CHECKS, name
        CHECKS[name] = Check(name, statement, law, problems, unsupported)
        return law

    return register


def no_exact_features(scope: Scope) -> str | None:
    """Ask for inputs with integer features."""
    for feature_map in (scope.query_map, scope.key_map):
        if feature_map.from_integers is None:
            return (
                f"no input of the feature map {feature_map.name} has integer features"
            )
    return None


def not_normalised(scope: Scope) -> str | None:
    """Ask for normalised rows."""
    return None if scope.contract.normalize else "the contract says normalize=false"


def not_causal(scope: Scope) -> str | None:
    """Ask for an operator with a past."""
    return None if scope.operator.causal else "the operator is not causal"


def not_homogeneous(scope: Scope) -> str | None:
    """Ask for maps and a quotient that commute with powers of two."""
    for feature_map in (scope.query_map, scope.key_map):
        if not feature_map.homogeneous:
            return f"the feature map {feature_map.name} is not homogeneous"
    if scope.contract.eps:
        return f"the declared eps={scope.contract.eps:g} breaks it"
    return None


def no_short_lengths(scope: Scope) -> str | None:
    """Ask for a contract that allows no token or one."""
    if draws.short_lengths(scope):
        return None
    return "the contract allows neither no token nor one"


def no_forms(scope: Scope) -> str | None:
    """Ask for a target that exposes its forms."""
    return None if "form" in scope.exposes else "the target has no keyword `form`"


def no_chunk_size(scope: Scope) -> str | None:
    """Ask for a target that exposes its chunk size."""
    if "chunk_size" in scope.exposes:
        return None
    return "the target has no keyword `chunk_size`"


def no_heads(scope: Scope) -> str | None:
    """Ask for a layout with heads."""
    if "h" in scope.contract.layout:
        return None
    return f"the layout {scope.contract.layout} has no heads"
