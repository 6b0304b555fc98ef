"""Putting questions to a target: whole sequences, spans, gradients."""

from collections.abc import Callable, Iterable

import numpy as np

from linkern.testing.checks.registry import (
    no_gradients,
    no_gradients_of_state,
    no_state,
)
from linkern.testing.diagnosis.hypotheses import questions
from linkern.testing.diagnosis.hypotheses.evidence import Evidence, Probe
from linkern.testing.diagnosis.hypotheses.variant import Variant, attend
from linkern.testing.errors import TargetRaised
from linkern.testing.problems.context import Scope
from linkern.testing.problems.problem import Problem
from linkern.testing.target.process import Target
from linkern.testing.target.protocol import Call, Reply

__all__ = [
    "Asking",
    "far",
    "gradients",
    "gradients_of_spans",
    "outputs",
    "placed",
    "spans",
    "with_nan",
]

Asking = Callable[[Target, Scope], Evidence]

# A target that is right half of the time is caught with a probability of 1 - 2^-8.
REPEATS = 8


def outputs(target: Target, scope: Scope) -> Evidence:
    """Ask for whole sequences, in an order that shows what is kept between calls.

    Parameters
    ----------
    target : Target
        Behind its fence.
    scope : Scope
        What it claims and declares.

    Returns
    -------
    Evidence
        What it answered.

    Raises
    ------
    TargetRaised, TargetDied
        If it does not answer, except to a sequence of one token.
    """
    previous, returned, failure = None, np.zeros(0), ""
    probes, replies = [], []
    for number, problem in enumerate(questions.whole(scope)):
        asked = problem.told(previous=previous, returned=returned)
        try:
            reply = _call(target, asked)
        except TargetRaised as raised:
            if problem.length > 1:
                raise
            failure = str(raised)
            break
        probe = _of_output(asked, reply)
        previous, returned = problem, probe.got
        # The first call follows one that nobody knows.
        if number > 0:
            probes.append(probe)
            replies.append(reply)
    first = probes[0].problem
    repeats = [_of_output(first, _call(target, first)).got for _ in range(REPEATS)]
    return Evidence(
        scope,
        tuple(probes),
        tuple(replies),
        repeated=tuple(repeats),
        fails_on_one_token=failure,
    )


def far(target: Target, scope: Scope) -> Evidence:
    """Ask for one sequence that is longer than usual."""
    return _ask(target, scope, questions.far(scope))


def spans(target: Target, scope: Scope) -> Evidence:
    """Ask for sequences in spans, each of which starts from the state of the last."""
    applies = no_state(scope) is None and scope.contract.interface == "sequence"
    return _ask(target, scope, questions.in_spans(scope) if applies else ())


def gradients(target: Target, scope: Scope) -> Evidence:
    """Ask for gradients of whole sequences."""
    applies = no_gradients(scope) is None
    return _ask_back(
        target, scope, questions.to_differentiate(scope) if applies else ()
    )


def gradients_of_spans(target: Target, scope: Scope) -> Evidence:
    """Ask for gradients that are handed back through the states between spans."""
    applies = no_gradients_of_state(scope) is None
    asked = questions.spans_to_differentiate(scope) if applies else ()
    return _ask_back(target, scope, asked)


def _ask_back(target: Target, scope: Scope, problems: Iterable[Problem]) -> Evidence:
    probes: list[Probe] = []
    replies = []
    for problem in problems:
        reply = _call(target, problem)
        replies.append(reply)
        probes.extend(_of_gradients(problem, reply))
    return Evidence(scope, tuple(probes), tuple(replies))


def with_nan(target: Target, scope: Scope) -> Evidence:
    """Ask for values of which one is NaN."""
    return _ask(target, scope, questions.with_nan(scope))


def placed(target: Target, scope: Scope) -> Evidence:
    """Ask for inputs that are not contiguous, or have NaN around them."""
    return _ask(target, scope, questions.placed(scope))


def _ask(target: Target, scope: Scope, problems: Iterable[Problem]) -> Evidence:
    replies = [(problem, _call(target, problem)) for problem in problems]
    probes = tuple(_of_output(problem, reply) for problem, reply in replies)
    return Evidence(scope, probes, tuple(reply for _, reply in replies))


def _call(target: Target, problem: Problem) -> Reply:
    cuts = problem.knobs.get("cuts", ())
    return target.call(
        Call(
            problem.inputs,
            cuts=cuts,
            wants_state=bool(cuts),
            cotangent=problem.cotangent,
            memory=problem.knobs.get("memory", "contiguous"),
        )
    )


def _of_output(problem: Problem, reply: Reply) -> Probe:
    exact = problem.solve()
    if not np.isfinite(problem.value.astype(np.float64)).all():
        # The oracle proves nothing about NaN; which entries cannot be finite is clear.
        exact = attend(problem, Variant())
    got = np.zeros(0) if reply.output is None else reply.output.astype(np.float64)
    return Probe(problem, got, reply.dtype or problem.scope.output_dtype, exact)


def _of_gradients(problem: Problem, reply: Reply) -> Iterable[Probe]:
    if reply.gradients is None:
        return
    exact = problem.solve_gradients()
    for (name, expected), got, dtype in zip(
        exact.items(), reply.gradients, reply.gradient_dtypes, strict=True
    ):
        of = problem.told(of=name, exact=expected)
        due = dtype or problem.scope.dtype
        yield Probe(of, got.astype(np.float64), due, expected)
