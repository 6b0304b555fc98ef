"""Deviations of the family in gradients, where the outputs are right."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import numpy as np

from linkern.oracle import FAMILY, Bounded
from linkern.testing.diagnosis.hypotheses.evidence import Evidence
from linkern.testing.diagnosis.hypotheses.rules import consulted
from linkern.testing.diagnosis.hypotheses.variant import Deviation
from linkern.testing.problems.problem import Problem

__all__ = ["changed", "handed_back", "other_scale"]

Change = Callable[[Bounded, Problem], Bounded]
# Where the scale is inside of something that is not linear, it is no factor.
_NOT_A_FACTOR = ("gsa", "abc", "based", "rebased")


def other_scale(evidence: Evidence) -> Iterator[Deviation]:
    """Yield gradients of an operator with another factor on the scores."""
    operator = evidence.scope.operator
    if not operator.has_scale or operator.name in _NOT_A_FACTOR:
        return
    factors: tuple[tuple[str, Callable[[int], float]], ...] = (
        ("K^-0.5", lambda k: float(k**-0.5)),
        ("1", lambda _: 1.0),
    )
    for phrase, factor in factors:
        yield Deviation(
            "gradient_with_other_scale",
            f"gradients with a scale of {phrase}",
            partial(_scaled, factor=factor),
        )


def _scaled(problem: Problem, factor: Callable[[int], float]) -> Bounded:
    exact: Bounded = problem.knobs["exact"]
    ratio = factor(problem.sizes["k"]) / consulted(problem).scale
    return Bounded(exact.output * ratio, exact.bound * max(abs(ratio), 1.0))


def changed(evidence: Evidence) -> Iterator[Deviation]:
    """Yield one gradient that is lost, summed over heads, or of another head."""
    changes: tuple[tuple[str, str, Change], ...] = (
        ("gradient_lost", "no gradient of the {0}", _none),
        ("gradient_summed_over_heads", "a sum over heads for the {0}", _over_heads),
        ("gradient_of_first_batch", "the first batch entry's for the {0}", _of_first),
        ("gradient_of_first_head", "the first head's for the {0}", _of_first_head),
        ("gradient_averaged_over_batch", "a mean over batches for the {0}", _averaged),
        ("gradient_negated", "the opposite for the {0}", _negated),
    )
    for name, phrase, change in changes:
        for one in evidence.scope.operator.names:
            of = f"the gradients, but {phrase.format(one)}"
            yield Deviation(name, of, partial(_of_one, name=one, change=change))


def _of_one(problem: Problem, name: str, change: Change) -> Bounded:
    exact: Bounded = problem.knobs["exact"]
    return change(exact, problem) if problem.knobs["of"] == name else exact


def _none(exact: Bounded, problem: Problem) -> Bounded:
    del problem
    return Bounded(np.zeros_like(exact.output), np.zeros_like(exact.bound))


def _negated(exact: Bounded, problem: Problem) -> Bounded:
    del problem
    return Bounded(-exact.output, exact.bound)


def _axis(problem: Problem, letters: str) -> int | None:
    axes = problem.scope.operator.input(problem.knobs["of"]).axes
    return next((axes.index(letter) for letter in letters if letter in axes), None)


def _over_heads(exact: Bounded, problem: Problem) -> Bounded:
    axis = _axis(problem, "hg")
    if axis is None:
        return exact
    parts = (
        np.broadcast_to(x.sum(axis, keepdims=True), x.shape)
        for x in (exact.output, 1.01 * exact.bound)
    )
    return Bounded(*parts)


def _of_first(exact: Bounded, problem: Problem) -> Bounded:
    return _taken(exact, _axis(problem, "b"))


def _of_first_head(exact: Bounded, problem: Problem) -> Bounded:
    return _taken(exact, _axis(problem, "hg"))


def _taken(exact: Bounded, axis: int | None) -> Bounded:
    if axis is None:
        return exact
    parts = (
        np.repeat(np.take(x, [0], axis), x.shape[axis], axis)
        for x in (exact.output, exact.bound)
    )
    return Bounded(*parts)


def _averaged(exact: Bounded, problem: Problem) -> Bounded:
    """Return a sum over the batch, divided by its size."""
    if _axis(problem, "b") is not None:
        return exact
    return Bounded(exact.output / problem.sizes["b"], exact.bound)


def handed_back(evidence: Evidence) -> Iterator[Deviation]:
    """Yield gradients that are not handed back from one span to the one before."""
    yield Deviation(
        "gradient_of_state_lost",
        "gradients that do not go back through the state",
        _of_spans,
    )
    del evidence


def _of_spans(problem: Problem) -> Bounded:
    """Return gradients of spans that start from the right state, each by itself."""
    assert problem.cotangent is not None
    name, exact = problem.knobs["of"], problem.knobs["exact"]
    operator = FAMILY[str(problem.scope.operator.family)]
    axis = problem.scope.operator.input(name).token_axis
    state, outputs, bounds = None, [], []
    for first, last in pairwise((0, *problem.knobs["cuts"], problem.length)):
        asked = consulted(problem.span(first, last))
        cotangent = problem.cotangent[..., first:last, :].astype(np.float64)
        given = (asked.meant, cotangent, asked.scale, asked.precisions)
        found = operator.bounded_gradients(*given, state=state)[name]
        outputs.append(found.output)
        bounds.append(found.bound)
        state = operator.evaluate(asked.meant, asked.scale, state).state
    if axis is None:
        return Bounded(np.sum(outputs, axis=0), np.sum(bounds, axis=0) + exact.bound)
    # The state that a span starts from has errors of its own.
    bound = np.concatenate(bounds, axis) + exact.bound
    return Bounded(np.concatenate(outputs, axis), bound)
