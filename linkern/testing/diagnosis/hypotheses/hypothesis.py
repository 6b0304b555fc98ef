"""Hypotheses: kinds of defects, the operators they apply to, and their predictions."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from linkern.oracle import Bounded
from linkern.testing.problems.context import Scope
from linkern.testing.problems.problem import Problem

if TYPE_CHECKING:
    from linkern.testing.diagnosis.hypotheses.evidence import Evidence

__all__ = [
    "EXACT",
    "OPERATOR",
    "Deviation",
    "Hypothesis",
    "Predict",
    "causal",
    "gated",
    "hypotheses_of",
    "hypothesis",
    "linear",
    "normalized",
    "takes",
    "then",
]

Predict = Callable[[Problem], Bounded | None]
Applies = Callable[[Scope], bool]


@dataclass(frozen=True)
class Deviation:
    """One thing that a target may compute instead of the operator.

    Parameters
    ----------
    name : str
        ``eps``, ``key_lost_at_chunk_edge``, ...
    phrase : str
        What it agrees with, for people, measured parameters included.
    predict : callable
        What it returns for a problem, with the bound of its rounding errors; None if it
        does not say.
    allow_unknown : {"never", "on reals", "anywhere"}
        Where its bound may be infinite although the target leaves the operator there.
    loosens : bool
        True for the operator itself with larger rounding errors.
    declaration : tuple of str
        ``KEY=VALUE`` of a contract under which it is no deviation; empty if no contract
        allows it.
    """

    name: str
    phrase: str
    predict: Predict
    allow_unknown: str = "never"
    loosens: bool = False
    declaration: tuple[str, ...] = ()


Propose = Callable[["Evidence"], Iterable[Deviation]]


@dataclass(frozen=True)
class Hypothesis:
    """One kind of defect.

    Parameters
    ----------
    stage : str
        The probes of `hypotheses.probe` that show it.
    order : int
        Its place among the hypotheses of the stage; the simplest come first.
    applies : callable
        True for the scopes whose operator and contract leave room for it.
    propose : callable
        The deviations, with parameters measured from the evidence.
    """

    stage: str
    order: int
    applies: Applies
    propose: Propose


_HYPOTHESES: list[Hypothesis] = []


def hypothesis(
    stage: str, order: int, *conditions: Applies
) -> Callable[[Propose], Propose]:
    """Register a function that proposes deviations, under all of the conditions."""

    def register(propose: Propose) -> Propose:
        def applies(scope: Scope) -> bool:
            return all(condition(scope) for condition in conditions)

        _HYPOTHESES.append(Hypothesis(stage, order, applies, propose))
        return propose

    return register


def hypotheses_of(stage: str, scope: Scope) -> Iterator[Hypothesis]:
    """Yield the hypotheses of a stage that apply, the simplest first."""
    of_stage = (one for one in _HYPOTHESES if one.stage == stage)
    yield from (
        one for one in sorted(of_stage, key=lambda h: h.order) if one.applies(scope)
    )


def linear(scope: Scope) -> bool:
    """Return True for linear attention: feature maps, pairwise weights, a quotient."""
    return not gated(scope)


def gated(scope: Scope) -> bool:
    """Return True for operators whose predictions are the oracle on other inputs."""
    return not scope.operator.feature_map


def causal(scope: Scope) -> bool:
    """Return True if queries see keys up to their own only."""
    return scope.operator.causal


def normalized(scope: Scope) -> bool:
    """Return True for linear attention that divides by the sum of the weights."""
    return linear(scope) and scope.contract.normalize


def takes(*names: str) -> Applies:
    """Return the condition that an operator has all of these inputs."""
    return lambda scope: {*names} <= {*scope.operator.names}


def then(predict: Predict, finish: Callable[[Bounded], Bounded]) -> Predict:
    """Return a prediction whose result is changed afterwards."""

    def predict_then(problem: Problem) -> Bounded | None:
        result = predict(problem)
        return result and finish(result)

    return predict_then


def _gradient(problem: Problem) -> Bounded:
    exact: Bounded = problem.knobs["exact"]
    return exact


OPERATOR = Deviation("operator", "the operator", Problem.solve)
# The gradient that a probe of gradients is about.
EXACT = Deviation("exact", "the exact gradient", _gradient)
