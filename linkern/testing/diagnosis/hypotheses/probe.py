"""Probing a target: one probe suite, whose stages ask for more and more."""

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import numpy as np

from linkern.oracle import Bounded
from linkern.testing.checks.registry import (
    no_gradients,
    no_gradients_of_state,
    no_state,
)
from linkern.testing.diagnosis.hypotheses import probe_inputs
from linkern.testing.diagnosis.hypotheses.evidence import Evidence, Probe
from linkern.testing.diagnosis.hypotheses.variant import Variant, attend
from linkern.testing.errors import TargetRaised
from linkern.testing.problems.context import Scope
from linkern.testing.problems.problem import Problem
from linkern.testing.target.process import Target
from linkern.testing.target.protocol import Call, Reply

__all__ = ["STAGES", "separately"]

# A target that is right half of the time is caught with a probability of 1 - 2^-8.
REPEATS = 8


def _outputs(target: Target, scope: Scope) -> Evidence:
    """Ask for whole sequences, in an order that shows what is kept between calls.

    Raises
    ------
    TargetRaised, TargetDied
        If it does not answer, except to a sequence of one token.
    """
    previous, returned, failure = None, np.zeros(0), ""
    probes, replies = [], []
    for number, problem in enumerate(probe_inputs.whole(scope)):
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


def _omitted(target: Target, scope: Scope) -> Evidence:
    """Ask for sequences without one of the gates."""
    return _ask(target, scope, probe_inputs.without_gates(scope))


def _far(target: Target, scope: Scope) -> Evidence:
    """Ask for one sequence that is longer than usual."""
    return _ask(target, scope, probe_inputs.far(scope))


def _spans(target: Target, scope: Scope) -> Evidence:
    """Ask for sequences in spans, each of which starts from the state of the last."""
    applies = no_state(scope) is None and scope.contract.interface == "sequence"
    return _ask(target, scope, probe_inputs.in_spans(scope) if applies else ())


def _packed(target: Target, scope: Scope) -> Evidence:
    """Ask for packed sequences."""
    applies = scope.interface.cu_seqlens is not None and "b" in scope.contract.layout
    return _ask(target, scope, probe_inputs.packed(scope) if applies else ())


def _gradients(target: Target, scope: Scope) -> Evidence:
    """Ask for gradients of whole sequences."""
    applies = no_gradients(scope) is None
    problems = probe_inputs.to_differentiate(scope) if applies else ()
    return _ask_gradients(target, scope, problems)


def _gradients_of_spans(target: Target, scope: Scope) -> Evidence:
    """Ask for gradients that pass through the states between spans."""
    applies = no_gradients_of_state(scope) is None
    problems = probe_inputs.spans_to_differentiate(scope) if applies else ()
    return _ask_gradients(target, scope, problems)


def _with_nan(target: Target, scope: Scope) -> Evidence:
    """Ask for values of which one is NaN."""
    return _ask(target, scope, probe_inputs.with_nan(scope))


def _placed(target: Target, scope: Scope) -> Evidence:
    """Ask for inputs that are not contiguous, or have NaN around them."""
    return _ask(target, scope, probe_inputs.placed(scope))


# In this order: the first stage in which a defect shows is the one to explain.
STAGES: dict[str, Callable[[Target, Scope], Evidence]] = {
    "outputs": _outputs,
    "omitted": _omitted,
    "spans": _spans,
    "packed": _packed,
    "gradients": _gradients,
    "gradients_of_spans": _gradients_of_spans,
    "far": _far,
    "with_nan": _with_nan,
    "placed": _placed,
}


def separately(problem: Problem, edges: Iterable[int]) -> Bounded:
    """Return the outputs of spans that know nothing of each other."""
    parts = [problem.span(*ends).solve() for ends in pairwise(edges)]
    return Bounded(
        np.concatenate([part.output for part in parts], axis=-2),
        np.concatenate([part.bound for part in parts], axis=-2),
    )


def _ask(target: Target, scope: Scope, problems: Iterable[Problem]) -> Evidence:
    replies = [(problem, _call(target, problem)) for problem in problems]
    probes = tuple(_of_output(problem, reply) for problem, reply in replies)
    return Evidence(scope, probes, tuple(reply for _, reply in replies))


def _ask_gradients(
    target: Target, scope: Scope, problems: Iterable[Problem]
) -> Evidence:
    replies = [(problem, _call(target, problem)) for problem in problems]
    probes = tuple(probe for asked in replies for probe in _of_gradients(*asked))
    return Evidence(scope, probes, tuple(reply for _, reply in replies))


def _call(target: Target, problem: Problem) -> Reply:
    params = problem.knobs
    cuts, edges = params.get("cuts", ()), params.get("segments")
    return target.call(
        Call(
            problem.inputs,
            cuts=cuts,
            wants_state=bool(cuts),
            cotangent=problem.cotangent,
            memory=params.get("memory", "contiguous"),
            segments=(edges,) if edges else (),
        )
    )


def _of_output(problem: Problem, reply: Reply) -> Probe:
    edges = problem.knobs.get("segments")
    exact = separately(problem, edges) if edges else problem.solve()
    if not np.isfinite(problem.inputs["value"].astype(np.float64)).all():
        # The oracle proves nothing about NaN; which entries cannot be finite is clear.
        exact = attend(problem, Variant())
    got = np.zeros(0) if reply.output is None else reply.output.astype(np.float64)
    return Probe(problem, got, reply.dtype or problem.scope.output_dtype, exact)


def _of_gradients(problem: Problem, reply: Reply) -> Iterator[Probe]:
    if reply.gradients is None:
        return
    exact = problem.solve_gradients()
    for name, got, dtype in zip(
        problem.inputs, reply.gradients, reply.gradient_dtypes, strict=True
    ):
        asked = problem.told(of=name, exact=exact[name])
        yield Probe(
            asked,
            got.astype(np.float64),
            dtype or problem.scope.dtype,
            exact[name],
        )
