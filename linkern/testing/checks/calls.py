"""Laws of the call itself: shape, dtype, determinism, side effects, validation."""

import numpy as np

from linkern.testing.checks.assertions import CheckedTarget, well_formed
from linkern.testing.checks.findings import Violation
from linkern.testing.checks.registry import (
    check,
    no_final_state,
    no_short_lengths,
    no_state,
    not_thread_safe,
    not_validating,
)
from linkern.testing.problems import strategies as draws
from linkern.testing.problems.changes import CHANGES, shown_change
from linkern.testing.problems.context import Scope
from linkern.testing.problems.mixture import any_problem, of_sort
from linkern.testing.problems.problem import Problem
from linkern.testing.target.protocol import Reply, in_float64

__all__ = [
    "bad_input",
    "determinism",
    "finite_output",
    "freshness",
    "inputs_untouched",
    "leaves_no_trace",
    "shape_and_dtype",
    "short_sequences",
    "thread_safety",
]


@check(
    "the output has the shape (B, H, T, V), the dtype and the library of the inputs",
    problems=any_problem,
    share=0.5,
    relation=True,
)
def shape_and_dtype(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: promotion to float64, lazy or foreign arrays, transposed outputs.

    Fix: Allocate the output in the shape of the values, one row for each query, with
    the dtype of the query, and cast once, at the store. A float64 scalar in the
    epilogue promotes the whole array. If another order of axes or another dtype is
    meant, declare `layout` or `output_dtype`.
    """
    target.run(problem)


@check(
    "inputs in their ranges whose exact output is finite give a finite output",
    problems=any_problem,
    share=0.5,
    relation=True,
)
def finite_output(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: 0 / 0 in rows that see no key, overflow of exp(-g), rows not written.

    Fix: Look at the first entry that is not finite: in row 0 of every head a strict
    mask has left the query no key, in the last rows a tail was not written. Behind
    strong decays the kernel divides by an exponential: take the exponential of a
    difference of sums of log-decays that is at most 0. Behind a log-decay of -inf,
    which forgets everything, it subtracts sums that are both -inf: sum between the two
    tokens instead, or declare `decay_floor`.
    """
    message = "the output is not finite where the exact one is"
    target.require_finite(target.run(problem), problem, message)


@check(
    "the same inputs give the same bits, whatever was computed in between",
    problems=any_problem,
    in_outputs=False,
    share=0.7,
    relation=True,
)
def determinism(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: races, uninitialised memory, state kept or replayed between calls.

    Fix: Look for atomic additions, for sums whose order the scheduler chooses, for
    memory from `empty` that is read before it is written, and for anything that is kept
    between calls. Sum in a fixed order, or in two passes.
    """
    first = target.run(problem)
    again = target.run(problem)
    message = "two calls with the same inputs gave different outputs"
    target.require_same(again, first, problem, message)
    # New contents at the same addresses: the buffers of the inputs are reused.
    other = target.run(problem.with_inputs(value=(problem.value * -2)))
    if first.any() and np.array_equal(other, first):
        message = "a call with new values returned the outputs of the old ones"
        raise Violation(message, problem)
    message = "a call with other values in between changed the output"
    target.require_same(target.run(problem), first, problem, message)


@check(
    "an output is of the inputs of its own call, however many calls went before, and "
    "no later call changes it",
    problems=lambda scope: draws.with_choice(
        draws.with_cuts(any_problem(scope, "repeated"), most=1),
        inputs=scope.operator.names,
        change=CHANGES,
        calls=(1, 2, 12),
        split=(False, True, True),
    ),
    judges=of_sort("repeated", "random"),
    share=0.4,
    in_outputs=False,
    relation=True,
)
def freshness(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: results and states kept by pointer, shape, sum or sample; stale graphs.

    A result that was returned is not changed by the calls after it, a few of which are
    made: a state that is kept, for a branch of a search, lies in no workspace.

    Fix: Compute every call from its own inputs. Key no cache by address, shape or a
    sample of the numbers: none says what the memory holds now. A captured graph reads
    the arrays that it was captured with: copy the inputs there at every call, and copy
    the output out of its static buffer.
    """
    name, knobs = problem.knobs["inputs"], problem.knobs
    scope = problem.scope
    handed = knobs["split"] and scope.operator.causal and not no_state(scope)
    cuts = knobs["cuts"] if handed else ()
    # What only the state of the first span tells the second one, if there are two.
    before = cuts[0] if cuts else None
    rng = np.random.default_rng(problem.length)
    changed = shown_change(problem, name, knobs["change"], rng, before=before)
    if changed is None or not target.is_right(problem):
        return
    # Final states are asked for, so that a later call can be seen to change them.
    wanted = knobs["split"] and not no_final_state(scope)
    asked = {"cuts": cuts, "wants_state": wanted}
    for _ in range(knobs["calls"]):
        reply = target.observe(problem, **asked)
    # Parts that are wrong at every call tell nothing of what is kept between calls.
    parts = well_formed(reply, problem)
    if cuts and not target.is_within(parts, problem.solve(), problem, "state_split"):
        return
    what = f"a changed {name} ({knobs['change']})"
    # At the addresses of the call before, where arrays can change in place.
    reply = target.observe(changed, **asked)
    _require_fresh(target, reply, changed, f"the output does not follow {what}")
    back = target.observe(problem, **asked)
    message = f"the output does not follow {what}, changed back"
    _require_fresh(target, back, problem, message)
    if problem.scope.styles:
        elsewhere = target.observe(changed, memory="offset", **asked)
        message = f"the output does not follow {what} at another address"
        _require_fresh(target, elsewhere, changed, message)


def _require_fresh(
    target: CheckedTarget, reply: Reply, problem: Problem, message: str
) -> None:
    if reply.overwritten:
        lost = f"the call changed the {reply.overwritten} that an earlier call returned"
        raise Violation(lost, problem)
    output = well_formed(reply, problem)
    target.require_within(output, problem.solve(), problem, message)


@check(
    "the inputs are left as they were, and the output does not share their memory",
    problems=lambda scope: draws.with_cuts(any_problem(scope)),
    share=0.5,
    in_outputs=False,
    relation=True,
)
def inputs_untouched(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: feature maps applied in place, outputs written into inputs or states.

    Fix: Apply feature maps, scales and gates out of place, and write the final state to
    memory of its own. If an input is overwritten on purpose, declare it: `mutates=key`.
    """
    scope = problem.scope
    whole = target.observe(problem)
    replies = [whole]
    if scope.interface.takes_state:
        replies.append(target.observe(problem, cuts=problem.knobs["cuts"]))
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
    problems=any_problem,
    share=0.1,
    in_outputs=False,
    over_ranks=False,
    relation=True,
)
def leaves_no_trace(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: seeded generators, flushed subnormals, forks, changed defaults.

    Fix: Draw from a generator of the kernel's own instead of seeding the global one.
    Restore what the call switches: floating-point mode, default dtype, number of
    threads, working directory.
    """
    for _ in range(2):  # a forked copy shows at the next call
        traces = target.observe(problem).traces
        if traces:
            message = f"the call changed {' and '.join(traces)}"
            raise Violation(message, problem)


@check(
    "calls from several threads at once give what each would give alone, bitwise",
    problems=lambda scope: any_problem(scope, "busy"),
    judges=of_sort("busy"),
    unless=not_thread_safe,
    share=0.16,
    in_outputs=False,
    over_ranks=False,
    relation=True,
)
def thread_safety(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: scratch memory shared between calls.

    Fix: Allocate scratch memory for each call, stream or thread instead of once for the
    module. If calls from several threads are not supported, declare
    `thread_safe=false`.
    """
    reply = target.observe(problem, threads=2)
    alone = well_formed(reply, problem)
    message = "a call from another thread at the same time changed the output"
    for output in reply.other_outputs:
        if output.shape != alone.shape:
            raise Violation(message, problem)
        target.require_same(in_float64(output), alone, problem, message)


@check(
    "no token gives an empty output, one token gives its own value",
    problems=lambda scope: any_problem(scope, "short"),
    judges=lambda problem: problem.length < 2,
    unless=no_short_lengths,
    share=0.15,
)
def short_sequences(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: empty grids, reshapes of nothing, a first row that misses itself.

    Fix: Return early for no token: a launch with an empty grid is an error. For one
    token, look at axes that are squeezed and at loops that expect a second token or a
    full tile. If short sequences are refused on purpose, declare `min_length`.
    """
    output = target.run(problem)
    message = "the output of a short sequence is wrong"
    target.require_within(output, problem.solve(), problem, message)


def _misfits(scope: Scope) -> tuple[str, ...]:
    """Return the wrong shapes that inputs can be given."""
    names = [x.name for x in scope.operator.inputs if x.per_token and x.name != "query"]
    channels = [f"{n} channels" for n in names if n == "key"]
    return (*channels, *(f"{n} tokens" for n in names), "all heads")


@check(
    "inputs whose shapes do not fit are refused with an exception",
    problems=lambda scope: draws.with_choice(
        any_problem(scope), misfit=_misfits(scope)
    ),
    judges=lambda problem: problem.length > 2 and problem.sort == "reals",
    unless=not_validating,
    share=0.3,
    in_outputs=False,
    over_ranks=False,
    relation=True,
)
def bad_input(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: missing validation, silent broadcasting.

    Fix: Before the launch, compare the shapes of keys, values and gates with that of
    the queries, and raise an exception that names the input. A shape that would
    broadcast on the host is read out of bounds in a kernel.
    """
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
    if not target.refuses(problem.with_inputs(**{name: x})):
        message = f"it accepted a misfit of {what} in silence"
        raise Violation(message, problem)
