"""Laws of memory that only an interpreted kernel shows: its bounds, its content."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from linkern.testing.checks.assertions import CheckedTarget
from linkern.testing.checks.findings import Violation
from linkern.testing.checks.registry import check, no_gradients, not_interpreted
from linkern.testing.problems import strategies as draws
from linkern.testing.problems.context import Scope
from linkern.testing.problems.mixture import any_gradient, any_problem
from linkern.testing.problems.problem import Problem
from linkern.testing.target.protocol import Reply

__all__ = ["no_access_out_of_bounds", "no_uninitialised_memory"]


def _problems(scope: Scope) -> st.SearchStrategy[Problem]:
    """Return problems for all that a call can be asked for."""
    if no_gradients(scope):
        return draws.with_choice(any_problem(scope), asked=("output", "state"))
    asked = ("gradients", "state", "output")
    return draws.with_choice(any_gradient(scope), asked=asked)


def _observed(target: CheckedTarget, problem: Problem, **options: Any) -> Reply:
    """Call the target for its output, its state too, or its gradients."""
    asked = problem.knobs["asked"]
    if asked == "gradients":
        options["cotangent"] = problem.cotangent
    elif asked == "state" and problem.scope.interface.takes_state:
        options["wants_state"] = True
    return target.observe(problem, **options)


@check(
    "every load, store and atomic of a kernel stays within the tensor that its pointer "
    "comes from",
    problems=_problems,
    unless=not_interpreted,
    share=0.3,
    in_outputs=False,
)
def no_access_out_of_bounds(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: masks that are missing, off by one or of another axis, tails of tiles.

    Fix: Mask the access at that line by the size of the tensor: of its tokens for rows,
    of its channels for columns, by `boundary_check` for block pointers. Where sequences
    are packed, the last row is that of the sequence.
    """
    _observed(target, problem)


@check(
    "no result depends on memory that was allocated and never written",
    problems=_problems,
    unless=not_interpreted,
    share=0.3,
    in_outputs=False,
)
def no_uninitialised_memory(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: tails that no program writes, accumulators and states from `empty`.

    Fix: Let a program write every entry of what `torch.empty` returns, or allocate it
    by `torch.zeros`. A load at that line needs the mask of the store before it.
    """
    first = _observed(target, problem)
    other = _observed(target, problem, fill="large")
    if _same(first, other):
        return
    # What differs without a reason is left to `determinism`.
    if not _same(_observed(target, problem), first):
        return
    loads = (*first.unwritten, *other.unwritten)
    seen = loads[0] if loads else "no kernel writes some of what it returns"
    message = f"a result depends on memory that nothing wrote: {seen}"
    raise Violation(message, problem)


def _same(one: Reply, other: Reply) -> bool:
    """Return True for replies with the same bits in outputs, states and gradients."""
    return all(
        len(xs) == len(ys)
        and all(
            np.array_equal(x, y, equal_nan=True) for x, y in zip(xs, ys, strict=True)
        )
        for xs, ys in zip(_results(one), _results(other), strict=True)
    )


def _results(reply: Reply) -> tuple[tuple[Any, ...], ...]:
    output = () if reply.output is None else (reply.output,)
    return output, reply.states or (), reply.gradients or ()
