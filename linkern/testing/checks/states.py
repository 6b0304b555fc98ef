"""Laws of the state: value, handover between segments, merging, drift."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from linkern.oracle import Bounded
from linkern.testing.checks.assertions import CheckedTarget
from linkern.testing.checks.findings import Violation, listed
from linkern.testing.checks.registry import (
    any_of,
    check,
    no_final_state,
    no_state,
    not_causal,
    not_mergeable,
    not_random,
)
from linkern.testing.checks.values import CONFIDENCE
from linkern.testing.errors import DoesNotApply, skipped
from linkern.testing.problems import strategies as draws
from linkern.testing.problems.context import Scope
from linkern.testing.problems.expected import kept_over
from linkern.testing.problems.mixture import any_problem, of_sort, provable
from linkern.testing.problems.problem import Problem
from linkern.testing.target.protocol import in_float64

__all__ = [
    "decoding",
    "final_states",
    "state_drift",
    "state_merge",
    "state_split",
    "state_value",
]

Real = NDArray[Any]

# Most tokens decoded one by one, and of an interpreted kernel, whose calls are slow.
_DECODED, _INTERPRETED = 24, 6

_stateful = any_of(not_causal, no_state)
stateless = any_of(not_causal, no_final_state)


def _cut_problems(scope: Scope) -> st.SearchStrategy[Problem]:
    return draws.with_cuts(any_problem(scope))


def _require_split(
    target: CheckedTarget, problem: Problem, cuts: tuple[int, ...]
) -> None:
    if not target.is_right(problem):
        return
    reply = target.split(problem, cuts)
    assert reply.output is not None
    message = f"spans cut at {listed(cuts)} do not give what the whole gives"
    output = in_float64(reply.output)
    target.require_within(output, problem.solve(), problem, message)


@check(
    "a sequence can be cut anywhere: the second part, started from the state of the "
    "first, gives what the whole gives",
    problems=_cut_problems,
    judges=provable,
    unless=_stateful,
    kind="state",
)
def state_split(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: states ignored, half ignored, wrong after a tail, or read transposed.

    Fix: Load the whole state that was handed over, memory and normalizer, decay it by
    the gates of this span, and let every token read it. The state that is returned
    includes a last chunk that is not full. If the memory is kept as (V, K), declare
    `state_layout=vk`.
    """
    if not problem.knobs["cuts"]:
        return
    _require_split(target, problem, problem.knobs["cuts"])


@check(
    "a prompt can be read at once and the rest token by token",
    problems=_cut_problems,
    judges=provable,
    unless=_stateful,
    share=0.3,
    kind="state",
)
def decoding(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: states that are right at the edges of chunks only, one-token spans.

    Fix: Look at the path for a single token, and at a prompt whose length is no
    multiple of the chunk: the state must be right after every token, not at the edges
    of chunks alone.
    """
    if problem.scope.contract.length_multiple_of > 1 or not problem.knobs["cuts"]:
        return
    first = problem.knobs["cuts"][0]
    most = _INTERPRETED if problem.scope.interpreted else _DECODED
    # Compiled targets: the prompt and the tokens are two shapes, not twenty.
    short = problem.prefix(min(first + most, problem.length))
    _require_split(target, short, tuple(range(first, short.length)))


@check(
    "the state is the sum over the tokens: memory of k v^T, normalizer of k",
    problems=any_problem,
    judges=provable,
    unless=stateless,
    in_outputs=False,
    share=0.5,
    kind="state",
)
def state_value(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: states without a tail, scaled, or carried in less than declared.

    Fix: Return the state after the last token, a shorter last chunk included, without
    the scale, which belongs to the reading, and in the accumulator's dtype. If a
    narrower state is meant, declare `state_dtype`.
    """
    for name, got, bounded, stored in final_states(target, problem):
        message = f"the {name} after the last token is wrong"
        target.require_within(got, bounded, problem, message, stored)


def final_states(
    target: CheckedTarget, problem: Problem
) -> Iterator[tuple[str, Real, Bounded, str]]:
    """Yield what a target returns as its final state, and what is exact.

    Parameters
    ----------
    target : CheckedTarget
        It is called once.
    problem : Problem
        The inputs of the call.

    Yields
    ------
    str
        ``memory``, then ``normalizer`` where there is one.
    array, Bounded
        What came back, and the exact one.
    str
        The dtype that it is stored in.
    """
    scope = problem.scope
    precisions = scope.contract.precisions(scope.dtype)
    dtypes = (precisions.state, precisions.normalizer)
    states = target.states(problem)
    expected = kept_over(scope.operator, states, problem.solve_state())
    if len(scope.operator.state) > 1 and scope.normalised and len(states) == 1:
        if scope.interface.takes_state:
            message = "the state lacks a normalizer"
            raise Violation(message, problem)
        if scope.operator.log_normalizer:
            reason = "it returns a memory without the logarithm that it is divided by"
            raise DoesNotApply(skipped(reason, "return it after the memory"))
    names = ("memory", "normalizer")
    for name, got, bounded, dtype in zip(names, states, expected, dtypes, strict=False):
        yield name, got, bounded, dtype or precisions.accumulator


@check(
    "states add up: that of two spans is the sum of those of each alone",
    problems=_cut_problems,
    judges=provable,
    unless=any_of(stateless, not_mergeable),
    share=0.2,
    in_outputs=False,
    relation=True,
)
def state_merge(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: states that depend on where a span starts, or on its length.

    Fix: The state is a plain sum over the tokens. Remove averages, rescaling and
    positions from what is stored: nothing in it may depend on where the span starts or
    how long it is.
    """
    if not problem.knobs["cuts"]:
        return
    cut = problem.knobs["cuts"][0]
    whole = target.states(problem)
    spans = (problem.span(0, cut), problem.span(cut, problem.length))
    parts = [target.states(span) for span in spans]
    message = f"the states of the spans cut at {cut} do not add up to that of the whole"
    precisions = problem.scope.contract.precisions(problem.scope.dtype)
    stored = precisions.state or precisions.accumulator
    expected = [x.solve_state() for x in (problem, *spans)]
    for i, got in enumerate(whole):
        allowed = np.sum([state[i].once_stored(stored) for state in expected], axis=0)
        together = parts[0][i] + parts[1][i]
        target.require_close(together, got, allowed, problem, message)


@check(
    "a state that is carried through thousands of tokens does not drift",
    problems=lambda scope: draws.with_choice(
        any_problem(scope, "long"), span=(250, 64, 500)
    ),
    judges=of_sort("long"),
    unless=_stateful,
    share=0.05,
    relation=True,
)
def state_drift(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: states kept in narrow dtypes, errors that add up at every hand-over.

    Fix: Carry the state from call to call in float32, also where inputs are narrower,
    and round the output alone. If a narrower state is meant, declare `state_dtype`.
    """
    step = problem.scope.contract.length_multiple_of
    span = -(-problem.knobs["span"] // step) * step
    cuts = tuple(range(span, problem.length, span))
    if not target.is_right(problem):
        return
    reply = target.split(problem, cuts)
    assert reply.output is not None
    confidence = None if not_random(problem.scope) else CONFIDENCE
    expected = problem.solve(confidence=confidence)
    message = f"the output drifts as the state is carried from span to span of {span}"
    output = in_float64(reply.output)
    target.require_within(output, expected, problem, message)
