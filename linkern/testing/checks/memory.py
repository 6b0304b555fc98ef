"""Laws of memory layout: strides and surroundings of inputs must not matter."""

from linkern.testing.checks.assertions import CheckedTarget, well_formed
from linkern.testing.checks.findings import Violation
from linkern.testing.checks.registry import check, no_styles, not_any_strides
from linkern.testing.problems import strategies as draws
from linkern.testing.problems.context import Scope
from linkern.testing.problems.mixture import any_problem, of_sort, provable
from linkern.testing.problems.problem import Problem

__all__ = ["broadcast_inputs", "nothing_leaks_from_padding", "strides"]

# Contiguous as they are; their surroundings are not.
_GUARDED = ("offset",)


def _strided(scope: Scope) -> tuple[str, ...]:
    return tuple(s for s in scope.styles if s not in ("broadcast", *_GUARDED)) or ("",)


def _require_right(target: CheckedTarget, problem: Problem, style: str) -> None:
    if not target.is_right(problem):
        return
    reply = target.observe(problem, memory=style)
    disturbed = [name for name in reply.changed if name.startswith("the memory")]
    if disturbed:
        message = f"the call wrote to {disturbed[0]}, which is not its own"
        raise Violation(message, problem)
    output = well_formed(reply, problem)
    message = f"the output is wrong if inputs are {style} in memory"
    target.require_within(output, problem.solve(), problem, message)


@check(
    "strides do not matter: Fortran order, slices, swapped axes and reversed arrays "
    "give what contiguous ones give, to rounding",
    problems=lambda scope: draws.with_choice(
        any_problem(scope), memory=_strided(scope)
    ),
    judges=provable,
    unless=not_any_strides,
    share=0.4,
    over_ranks=False,
)
def strides(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: kernels that take their inputs for contiguous.

    Fix: Take the strides of every input from the array, or copy it to contiguous memory
    when the kernel is entered. If callers must do that, refuse other strides and
    declare `strides=contiguous`.
    """
    _require_right(target, problem, problem.knobs["memory"])


@check(
    "one head may stand for all of them, with a stride of zero",
    problems=lambda scope: any_problem(scope, "equal heads"),
    judges=of_sort("equal heads"),
    unless=not_any_strides,
    share=0.1,
    over_ranks=False,
)
def broadcast_inputs(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: expanded tensors read as if they were full.

    Fix: An expanded axis has stride zero: multiply indices by the strides of the array,
    or copy it to contiguous memory when the kernel is entered. Never write through such
    an input.
    """
    _require_right(target, problem, "broadcast")


@check(
    "what lies around the inputs in memory is neither read nor written: it is NaN here",
    problems=any_problem,
    judges=provable,
    unless=no_styles,
    share=0.3,
    over_ranks=False,
)
def nothing_leaks_from_padding(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: loads past the end masked by multiplication, stores past the end.

    Fix: Mask every load and store by the real length and the real dimensions, and give
    masked loads a value (`other=0.0` in Triton). Discard what lies past the end by a
    select, not by a product with zero: it may be NaN.
    """
    _require_right(target, problem, "offset")
    if problem.scope.contract.strides == "any":
        _require_right(target, problem, "padded")
