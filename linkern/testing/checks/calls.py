"""Laws of the call itself: what it returns, leaves alone, and leaves behind."""

import numpy as np

from linkern.testing.checks.assertions import Trial, well_formed
from linkern.testing.checks.findings import Violation
from linkern.testing.checks.registry import (
    check,
    no_short_lengths,
    not_thread_safe,
    not_validating,
)
from linkern.testing.problems import strategies as draws
from linkern.testing.problems.context import Scope
from linkern.testing.problems.gates import altered
from linkern.testing.problems.problem import Problem

__all__ = [
    "bad_input",
    "determinism",
    "freshness",
    "inputs_untouched",
    "leaves_no_trace",
    "shape_and_dtype",
    "short_sequences",
    "thread_safety",
]


@check(
    "the output has the shape (B, H, T, V), the dtype and the library of the inputs",
    problems=draws.real_problems,
    share=0.5,
)
def shape_and_dtype(trial: Trial, problem: Problem) -> None:
    """Reaches: promotion to float64, lazy or foreign arrays, transposed outputs."""
    trial.run(problem)


@check(
    "the same inputs give the same bits, whatever was computed in between",
    problems=draws.real_problems,
    in_outputs=False,
    share=0.7,
)
def determinism(trial: Trial, problem: Problem) -> None:
    """Reaches: races, uninitialised memory, state kept or replayed between calls."""
    first = trial.run(problem)
    again = trial.run(problem)
    message = "two calls with the same inputs gave different outputs"
    trial.require_same(again, first, problem, message)
    # New contents at the same addresses: the buffers of the inputs are reused.
    other = trial.run(problem.with_inputs(value=(problem.value * -2)))
    if first.any() and np.array_equal(other, first):
        message = "a call with new values returned the outputs of the old ones"
        raise Violation(message, problem)
    message = "a call with other values in between changed the output"
    trial.require_same(trial.run(problem), first, problem, message)


@check(
    "an output belongs to its caller: the next call neither changes it nor returns it",
    problems=lambda scope: draws.with_choice(
        draws.real_problems(scope, least=2, kinds=("uniform",)),
        inputs=tuple(x.name for x in scope.operator.inputs if x.per_token),
    ),
    share=0.3,
    in_outputs=False,
)
def freshness(trial: Trial, problem: Problem) -> None:
    """Reaches: one output buffer for all calls, results kept by pointer or shape."""
    trial.run(problem)
    name = problem.knobs["inputs"]
    # The last token alone is another: a kernel that compares the first few will not do.
    x = problem.inputs[name].copy()
    axis = problem.scope.operator.input(name).token_axis
    assert axis is not None
    last = (*(slice(None),) * axis, slice(-1, None))
    if problem.scope.operator.family:
        x[last] = altered(problem, name, x[last])
    else:
        x[last] = x[last] * 3 - 1
    changed = problem.with_inputs(**{name: x})
    reply = trial.observe(changed)
    if reply.overwritten:
        message = "the call changed the output that the call before it had returned"
        raise Violation(message, problem)
    if not problem.scope.styles:
        return  # arrays cannot change in place
    message = f"the output does not follow a change of the {name} in place"
    output = well_formed(reply, changed)
    elsewhere = well_formed(trial.observe(changed, memory="offset"), changed)
    trial.require_agreement(output, elsewhere, changed.solve(), changed, message)


@check(
    "the inputs are left as they were, and the output does not share their memory",
    problems=lambda scope: draws.with_cuts(draws.real_problems(scope, least=2)),
    share=0.5,
    in_outputs=False,
)
def inputs_untouched(trial: Trial, problem: Problem) -> None:
    """Reaches: feature maps applied in place, outputs written into inputs or states."""
    scope = problem.scope
    whole = trial.observe(problem)
    replies = [whole]
    if scope.interface.takes_state:
        replies.append(trial.observe(problem, cuts=problem.knobs["cuts"]))
    for reply in replies:
        undeclared = set(reply.changed) - set(scope.contract.mutates)
        if undeclared:
            message = f"the call overwrote its {' and '.join(sorted(undeclared))}"
            raise Violation(message, problem)
    if whole.aliased:
        message = f"the output shares memory with its input {whole.aliased[0]}"
        raise Violation(message, problem)


@check(
    "a call leaves no trace in its process: random states, floating-point mode, "
    "working directory",
    problems=draws.real_problems,
    share=0.1,
    in_outputs=False,
)
def leaves_no_trace(trial: Trial, problem: Problem) -> None:
    """Reaches: seeded generators, flushed subnormals, forks, changed defaults."""
    for _ in range(2):  # a forked copy shows at the next call
        traces = trial.observe(problem).traces
        if traces:
            message = f"the call changed {' and '.join(traces)}"
            raise Violation(message, problem)


@check(
    "calls from several threads at once give what each would give alone, bitwise",
    problems=draws.busy_problems,
    unsupported=not_thread_safe,
    share=0.16,
    in_outputs=False,
)
def thread_safety(trial: Trial, problem: Problem) -> None:
    """Reaches: scratch memory shared between calls."""
    reply = trial.observe(problem, threads=2)
    alone = well_formed(reply, problem)
    message = "a call from another thread at the same time changed the output"
    for output in reply.other_outputs:
        trial.require_same(output.astype(np.float64), alone, problem, message)


@check(
    "no token gives an empty output, one token gives its own value",
    problems=draws.short_problems,
    unsupported=no_short_lengths,
    share=0.5,
)
def short_sequences(trial: Trial, problem: Problem) -> None:
    """Reaches: empty grids, reshapes of nothing, a first row that misses itself."""
    output = trial.run(problem)
    message = "the output of a short sequence is wrong"
    trial.require_within(output, problem.solve(), problem, message)


def _misfits(scope: Scope) -> tuple[str, ...]:
    """Return what can be wrong with the shape of an input."""
    names = [x.name for x in scope.operator.inputs if x.per_token and x.name != "query"]
    channels = [f"{n} channels" for n in names if n == "key"]
    return (*channels, *(f"{n} tokens" for n in names), "all heads")


@check(
    "inputs whose shapes do not fit are refused with an exception",
    problems=lambda scope: draws.with_choice(
        draws.real_problems(scope, least=3),
        misfit=_misfits(scope),
    ),
    unsupported=not_validating,
    share=0.3,
    in_outputs=False,
)
def bad_input(trial: Trial, problem: Problem) -> None:
    """Reaches: missing validation, silent broadcasting."""
    what = problem.knobs["misfit"]
    name, _, wrong = what.partition(" ")
    if wrong == "heads":
        name = "key" if "key" in problem.inputs else "value"
    x = problem.inputs[name]
    axis = problem.scope.operator.input(name).token_axis
    if wrong == "channels":
        x = np.concatenate([x, x], axis=-1)
    elif wrong == "tokens":
        assert axis is not None
        x = np.take(x, range(x.shape[axis] - 1), axis)
    else:
        x = np.concatenate([x, x, x], axis=1)
    if not trial.refuses(problem.with_inputs(**{name: x})):
        message = f"it accepted a misfit of {what} in silence"
        raise Violation(message, problem)
