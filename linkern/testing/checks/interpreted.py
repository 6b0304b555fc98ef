"""Laws that an interpreted kernel shows: bounds and content of memory, its tiles."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from linkern.oracle import Bounded
from linkern.testing.checks.assertions import CheckedTarget, compared
from linkern.testing.checks.findings import Violation
from linkern.testing.checks.registry import (
    check,
    memory_not_filled,
    no_gradients,
    not_configured,
    not_interpreted,
)
from linkern.testing.errors import DoesNotApply, not_applicable
from linkern.testing.problems import strategies as draws
from linkern.testing.problems.context import Scope
from linkern.testing.problems.mixture import any_gradient, any_problem
from linkern.testing.problems.problem import Problem
from linkern.testing.target.protocol import Reply

__all__ = [
    "every_configuration",
    "no_access_out_of_bounds",
    "no_uninitialised_memory",
]

# Positions of configurations, taken modulo their number: each of few is as frequent.
POSITIONS = tuple(range(60))


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
    unless=memory_not_filled,
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


@check(
    "an autotuned kernel is right in each of its configurations",
    problems=lambda scope: draws.with_choice(_problems(scope), position=POSITIONS),
    unless=not_configured,
    share=0.5,
    in_outputs=False,
)
def every_configuration(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: tiles, tails and states that are right for some block sizes only.

    Fix: Look at what the configuration that is named changes: a grid that was computed
    from another block size, a mask for one tile, a state of the last chunk. On some
    device an autotuner takes it.
    """
    usual = _observed(target, problem)
    if usual.variants == 1:
        reason = "no kernel that ran has configurations that differ"
        raise DoesNotApply(not_applicable(reason))
    if _first_wrong(usual, problem):
        return  # as other laws say
    position = problem.knobs["position"] % usual.variants
    try:
        other = _observed(target, problem, configuration=position)
    except Violation as violation:
        count = f"{position + 1} of {usual.variants}"
        violation.message += f", in configuration {count} of its autotuned kernels"
        raise
    target.leave_out(other.refused)
    wrong = _first_wrong(other, problem)
    if wrong is None:
        return
    differ = [x for x in other.configurations if x not in usual.configurations]
    for kernel in differ if len(differ) > 1 else ():
        name = kernel.partition(" ")[0]
        alone = _observed(target, problem, configuration=position, tuned=name)
        if _first_wrong(alone, problem):
            differ = [kernel]
            break
    name, got, expected, dtype = wrong
    message = f"the {name} is wrong in a configuration of {' and '.join(differ)}"
    target.require_within(got, expected, problem, message, dtype)


def _first_wrong(
    reply: Reply, problem: Problem
) -> tuple[str, Any, Bounded, str | None] | None:
    """Return the first result of a reply outside of its bound; None if all are right.

    With its name, what is exact, and the dtype in which it is stored, if not that of
    outputs.
    """
    scope = problem.scope
    if reply.output is not None and reply.output.shape == problem.solve().output.shape:
        got, expected = reply.output, problem.solve()
        if not compared(got, expected, scope.output_dtype).fine.all():
            return "output", got, expected, None
    gradients = zip(problem.inputs, reply.gradients or (), strict=False)
    for name, got in gradients:
        expected = problem.solve_gradients()[name]
        known = got.shape == expected.output.shape
        if known and not compared(got, expected, scope.dtype).fine.all():
            return f"gradient of the {name}", got, expected, scope.dtype
    return None


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
