"""Laws of packed sequences: outputs, states and gradients of each are its own."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from linkern.testing.checks.assertions import CheckedTarget, well_formed
from linkern.testing.checks.findings import Violation
from linkern.testing.checks.registry import (
    any_of,
    check,
    no_final_state,
    no_gradients,
    no_gradients_of_state,
    no_state,
    not_causal,
)
from linkern.testing.errors import (
    DoesNotApply,
    Inapplicable,
    not_applicable,
    skipped,
)
from linkern.testing.problems.context import Scope
from linkern.testing.problems.expected import kept_over
from linkern.testing.problems.mixture import any_gradient, any_problem
from linkern.testing.problems.packing import (
    Packing,
    exact_gradients,
    exact_outputs,
    exact_states,
    with_packing,
)
from linkern.testing.problems.problem import Problem
from linkern.testing.target.protocol import Reply, in_float64

__all__ = [
    "not_packed",
    "packed_equals_separate",
    "packed_gradients",
    "packed_states",
]

# Calls in which the sequences go on, where a state is handed over.
CALLS = (2, 1, 3)


def not_packed(scope: Scope) -> Inapplicable | None:
    """Require a batch and a parameter `cu_seqlens`."""
    if "b" not in scope.contract.layout:
        reason = f"the layout {scope.contract.layout} has no batch"
        return skipped(reason, "take arrays with a batch")
    if scope.contract.interface == "step":
        return not_applicable("one call takes one token")
    if scope.interface.cu_seqlens is None:
        reason = "the target takes no packed sequences: no parameter cu_seqlens"
        return skipped(reason, "take `cu_seqlens`")
    return None


def _one_position(scope: Scope) -> Inapplicable | None:
    """Require a target without a parameter for the position of the first token."""
    if scope.interface.position is None:
        return None
    return not_applicable("one position cannot say how far each sequence is")


def no_packed_gradients(scope: Scope) -> Inapplicable | None:
    """Require a `vjp` that takes `cu_seqlens`, or gradients by autograd."""
    if scope.interface.differentiable and not scope.interface.vjp_takes_packed:
        reason = "its `vjp` takes no packed sequences: no parameter cu_seqlens"
        return skipped(reason, "let `vjp` take `cu_seqlens`")
    return no_gradients(scope)


def _calls_to_differentiate(scope: Scope) -> tuple[int, ...]:
    """Return how many calls the gradients can go through."""
    through = any_of(no_gradients_of_state, _one_position)
    return (1,) if through(scope) else CALLS


def _long_enough(problem: Problem) -> bool:
    """Return True if there are tokens for several sequences, and bounds of sums."""
    return problem.length > 2 and problem.sort in ("reals", "random")


def _packed_state_problems(scope: Scope) -> st.SearchStrategy[Problem]:
    calls = (1,) if no_state(scope) else CALLS
    return with_packing(any_problem(scope), calls=calls)


def _packed_gradient_problems(scope: Scope) -> st.SearchStrategy[Problem]:
    problems = any_gradient(scope)
    return with_packing(problems, calls=_calls_to_differentiate(scope))


def _observed(target: CheckedTarget, problem: Problem, **options: Any) -> Reply:
    """Call the target on packed sequences, span by span if there are cuts."""
    packing: Packing = problem.knobs["packing"]
    calls = {"segments": packing.segments, "cuts": packing.cuts}
    try:
        return target.observe(problem, **calls, **options)
    except Violation as violation:
        if not violation.deviation.startswith("NotImplementedError"):
            raise
        reason = "it does not implement a state of each packed sequence"
        remedy = "take `cu_seqlens` and a state in one call"
        raise DoesNotApply(skipped(reason, remedy)) from violation


@check(
    "sequences that are packed one after the other give what each gives alone, empty "
    "ones among them",
    problems=lambda scope: with_packing(any_problem(scope)),
    judges=_long_enough,
    unless=any_of(not_causal, not_packed),
    relation=True,
)
def packed_equals_separate(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: chunks that reach into the next sequence, states that are not reset.

    Fix: Reset the state at every offset of `cu_seqlens`, and number chunks from the
    start of each sequence, not on one grid for the whole array. Allow for empty
    sequences, and write zeros behind the last offset.

    Rows that belong to no sequence may hold any number, but a NaN that was never
    written there reaches the gradients of whatever is multiplied with it. A target
    whose sequences must fill its arrays declares `packing=full`.
    """
    packing: Packing = problem.knobs["packing"]
    (edges,), (last,) = packing.segments, packing.ends
    reply = target.observe(problem, segments=packing.segments)
    whole = well_formed(reply, problem)
    if not np.isfinite(whole[..., last:, :]).all():
        message = f"rows after the last packed sequence, from {last} on, are not finite"
        raise Violation(message, problem)
    message = f"sequences packed at {', '.join(map(str, edges))} are not what each is"
    expected = exact_outputs(problem)
    target.require_within(whole[..., :last, :], expected, problem, message)


@check(
    "each packed sequence has a state of its own: it starts from the one that it is "
    "handed and leaves its own, an empty sequence the one that it was handed",
    problems=_packed_state_problems,
    judges=_long_enough,
    unless=any_of(not_causal, not_packed, no_final_state, _one_position),
    share=0.5,
    kind="state",
)
def packed_states(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: states that go to another sequence, or are lost by an empty one.

    Fix: Index `initial_state` and the final state, (N, H, K, V), by the sequence that a
    chunk belongs to, not by the batch entry or the chunk. Copy the initial state of a
    sequence without tokens to its final state.
    """
    packing: Packing = problem.knobs["packing"]
    if _shows_one_sequence(packing) and not _right_in_one_call(target, problem):
        return
    reply = _observed(target, problem, wants_state=True)
    output = well_formed(reply, problem)[..., : packing.ends[-1], :]
    if not reply.state_kind:
        reason = "it returned no state for packed sequences"
        raise DoesNotApply(skipped(reason, "return the states of packed sequences"))
    expected, first = exact_outputs(problem), packing.ends[0]
    # What goes wrong without a state, `packed_equals_separate` reports.
    start, started = output[..., :first, :], expected.rows(0, first)
    if not target.is_within(start, started, problem, "packed_equals_separate"):
        return
    message = f"sequences of {packing} tokens do not go on from their states"
    target.require_within(output, expected, problem, message)
    if reply.states is None:
        return
    precisions = problem.scope.contract.precisions(problem.scope.dtype)
    names = (("memory", precisions.state), ("normalizer", precisions.normalizer))
    exact = kept_over(problem.scope.operator, reply.states, exact_states(problem))
    states = zip(names, reply.states, exact, strict=False)
    for (name, dtype), got, bounded in states:
        message = f"a sequence of {packing} tokens leaves another {name}"
        stored = dtype or precisions.accumulator
        wide = in_float64(got)
        target.require_within(wide, bounded, problem, message, stored)


def _shows_one_sequence(packing: Packing) -> bool:
    """Return True if one sequence at most has tokens in the first of several calls."""
    first, *later = packing.lengths
    return bool(later) and sum(map(bool, first)) < 2


def _right_in_one_call(target: CheckedTarget, problem: Problem) -> bool:
    """Return True if all parts, packed in one call without states, are right.

    What is wrong there, `packed_equals_separate` reports; a call in which one sequence
    has tokens does not show it.
    """
    packing: Packing = problem.knobs["packing"].in_one_call
    apart = problem.told(packing=packing)
    reply = target.observe(apart, segments=packing.segments)
    output = well_formed(reply, apart)[..., : packing.ends[-1], :]
    expected = exact_outputs(apart)
    return target.is_within(output, expected, apart, "packed_equals_separate")


def _goes_on(target: CheckedTarget, problem: Problem) -> bool:
    """Return True if the outputs are right where the states are handed over.

    What is wrong there, `packed_states` reports.
    """
    packing: Packing = problem.knobs["packing"]
    reply = _observed(target, problem, wants_state=True)
    output = well_formed(reply, problem)[..., : packing.ends[-1], :]
    expected = exact_outputs(problem)
    right = target.is_within(output, expected, problem, "packed_states")
    return right and bool(reply.state_kind)


@check(
    "the gradients of packed sequences are those of each alone, through their states, "
    "and zero where no sequence is",
    problems=_packed_gradient_problems,
    judges=lambda problem: problem.length > 2,
    unless=any_of(not_causal, not_packed, no_packed_gradients),
    share=0.4,
    in_outputs=False,
    kind="gradient",
)
def packed_gradients(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: gradients that cross an offset, or come from another sequence's state.

    Fix: Walk backwards over the chunks of each sequence, with the offsets and chunk
    numbers of the forward pass. Start from the cotangent of the final state of that
    sequence, return the gradient of each initial state by itself, and write zeros
    behind the last offset.
    """
    packing: Packing = problem.knobs["packing"]
    if packing.cuts and not _goes_on(target, problem):
        return
    expected = exact_gradients(problem)
    gradients = target.gradients(problem, expected, packing.cuts, packing.segments)
    for name, got in gradients.items():
        message = f"the gradient of the {name} of packed sequences {packing} is wrong"
        stored = problem.scope.dtype
        axes = problem.scope.operator.input(name).axes
        target.require_within(got, expected[name], problem, message, stored, axes)
