"""Laws that an interpreted kernel shows: bounds and content of memory."""

from linkern.testing.checks.assertions import CheckedTarget
from linkern.testing.checks.findings import Violation
from linkern.testing.checks.registry import (
    check,
    memory_not_filled,
    not_interpreted,
)
from linkern.testing.checks.replies import any_request, differing, observed
from linkern.testing.problems.problem import Problem

__all__ = ["no_access_out_of_bounds", "no_uninitialised_memory"]


@check(
    "every load, store and atomic of a kernel stays within the tensor that its pointer "
    "comes from",
    problems=any_request,
    unless=not_interpreted,
    share=0.3,
    in_outputs=False,
    relation=True,
    shown_by=("interpreted",),
)
def no_access_out_of_bounds(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: masks that are missing, off by one or of another axis, tails of tiles.

    Fix: Mask the access at that line by the size of the tensor: of its tokens for rows,
    of its channels for columns, by `boundary_check` for block pointers. Where sequences
    are packed, the last row is that of the sequence.
    """
    observed(target, problem)


@check(
    "no result depends on memory that was allocated and never written",
    problems=any_request,
    unless=memory_not_filled,
    share=0.3,
    in_outputs=False,
    relation=True,
    shown_by=("interpreted", "cuda"),
)
def no_uninitialised_memory(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: tails that no program writes, accumulators and states from `empty`.

    Fix: Let a program write every entry of what `torch.empty` returns, or allocate it
    by `torch.zeros`. A load at that line needs the mask of the store before it.
    """
    first = observed(target, problem)
    other = observed(target, problem, fill="large")
    if not differing(first, other, problem):
        return
    # What differs without a reason is left to `determinism`.
    if differing(observed(target, problem), first, problem):
        return
    loads = (*first.unwritten, *other.unwritten)
    seen = loads[0] if loads else "no kernel writes some of what it returns"
    message = f"a result depends on memory that nothing wrote: {seen}"
    raise Violation(message, problem)
