"""Spans of a sequence: their outputs from a state on, and the states they leave."""

from dataclasses import replace

from linkern.oracle import Bounded
from linkern.testing.diagnosis.hypotheses import variant
from linkern.testing.diagnosis.hypotheses.hypothesis import gated
from linkern.testing.diagnosis.hypotheses.rules import meaning, operator_of
from linkern.testing.problems.problem import Problem

__all__ = ["State", "after", "from_state", "resumed", "span_of"]

State = tuple[Bounded, ...]


def resumed(span: Problem, state: State | None) -> tuple[Bounded, State]:
    """Return the output of a span that starts from a state, and the state after it."""
    if state is None:  # as every first span does
        return span.recalled("from no state", lambda: _run(span, None))
    return _run(span, state)


def _run(span: Problem, state: State | None) -> tuple[Bounded, State]:
    if not gated(span.scope):
        return variant.resumed(span, state)
    asked = meaning(span)
    output, after = operator_of(span).bounded(
        asked.meant,
        asked.scale,
        asked.precisions,
        state=None if state is None else tuple(x.output for x in state),
    )
    return asked.widened(output), after


def from_state(problem: Problem, state: State) -> Bounded:
    """Return the output from a state on, whose own errors are as large as the rest."""
    output = resumed(problem, state)[0]
    return Bounded(output.output, output.bound + problem.solve().bound)


def after(problem: Problem) -> State:
    """Return the state after a problem."""
    return resumed(problem, None)[1]


def span_of(problem: Problem, first: int, last: int) -> Problem:
    """Return some tokens of a problem; integers stay known."""

    def cut() -> Problem:
        span = problem.span(first, last)
        if problem.integers is None:
            return span
        a, b, v = (x[..., first:last, :] for x in problem.integers)
        return replace(span, integers=(a, b, v))

    return problem.recalled(("span", first, last), cut)
