"""Behaviours of calls that no influence map holds: crashes, NaN, memory, side effects.

Each is observed in replies to repeated and varied calls, and said with the numbers at
which it starts. What is asked before the maps explains why they mean nothing; what is
asked after them explains a target whose maps are right.
"""

import math
from collections.abc import Callable, Collection

import numpy as np

from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.checks.packed import not_packed
from linkern.testing.diagnosis.behaviours.broken_laws import broken_law
from linkern.testing.diagnosis.behaviours.finiteness import not_finite
from linkern.testing.diagnosis.behaviours.histories import agrees, kept_between_calls
from linkern.testing.diagnosis.behaviours.sizes import (
    REFUSED,
    refused_sizes,
    wrong_sizes,
)
from linkern.testing.diagnosis.behaviours.slopes import slope_at_zero
from linkern.testing.diagnosis.calm import SIZES, calm_call
from linkern.testing.diagnosis.diagnosis import Diagnosis
from linkern.testing.errors import DoesNotApply, TargetRaised
from linkern.testing.influence.scenes import carrier
from linkern.testing.problems.context import Scope
from linkern.testing.problems.generators import real_problem
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.shapes import nearest_shape
from linkern.testing.target.process import Target
from linkern.testing.target.protocol import Call, in_float64

__all__ = [
    "Observe",
    "adds_up",
    "observed_after",
    "observed_before",
    "refused",
    "right_where_dense",
]

Observe = Callable[[Target, Scope], Diagnosis | None]
# Names of outputs with swapped axes.
SWAPPED = (
    ("output_transposed", "last two axes", (-2, -1)),
    ("output_layout_swapped", "axes of heads and tokens", (1, 2)),
)
# Multiple of rounding by which wrong outputs may differ from their sum.
SLACK = 16.0
# Kinds of problems with features, and with gates.
FEATURES, GATES = ("normal", "uniform", "constant"), ("mild", "typical", "strong")


def observed_before(target: Target, scope: Scope) -> Diagnosis | None:
    """Return the behaviour because of which a map would mean nothing.

    Parameters
    ----------
    target : Target
        Loaded.
    scope : Scope
        What it claims and declares.

    Raises
    ------
    TargetDied
        If the target crashed or hung.
    """
    return _first((_form, kept_between_calls, refused_sizes), target, scope)


def observed_after(target: Target, scope: Scope) -> Diagnosis | None:
    """Return the behaviour of a target whose maps are right."""
    return _first(
        (_dtype, not_finite, broken_law, slope_at_zero, _numbers, wrong_sizes),
        target,
        scope,
    )


def _first(
    observers: tuple[Observe, ...], target: Target, scope: Scope
) -> Diagnosis | None:
    for observe in observers:
        try:
            observed = observe(target, scope)
        except (TargetRaised, DoesNotApply):
            continue
        if observed is not None:
            return observed
    return None


def _form(target: Target, scope: Scope) -> Diagnosis | None:
    """Observe outputs of another type, or with their axes in another order."""
    problem = calm_call(scope)
    reply = target.call(Call(problem.inputs))
    if reply.output is None:
        sentence = f"returns {reply.kind} instead of an array"
        return Diagnosis("returns_other_type", sentence, np.inf)
    # Maps of a dtype that holds less say that its numbers are rounded.
    if SIGNIFICAND_BITS.get(reply.dtype, 0) < SIGNIFICAND_BITS[scope.output_dtype]:
        return _dtype(target, scope)
    if agrees(reply.output, problem):
        return None
    exact = problem.solve().output
    for name, axes, swapped in SWAPPED if exact.ndim > 3 else ():
        other = np.swapaxes(exact, *swapped).shape
        if reply.output.size == exact.size and agrees(
            np.swapaxes(reply.output.reshape(other), *swapped), problem
        ):
            sentence = f"returns the output with its {axes} swapped"
            return Diagnosis(name, sentence, np.inf)
    if reply.shape != reply.expected_shape:
        sentence = f"returns the shape {reply.shape} instead of {reply.expected_shape}"
        return Diagnosis("returns_other_shape", sentence, np.inf)
    return None


def _numbers(target: Target, scope: Scope) -> Diagnosis | None:
    """Observe outputs that are wrong for numbers drawn in some ways alone."""
    kinds = FEATURES if scope.operator.feature_map else GATES
    shape, wrong = nearest_shape(scope, SIZES), {}
    for kind in kinds:
        problem = real_problem(scope, shape, kind, "normal", np.random.default_rng(0))
        output = target.call(Call(problem.inputs)).output
        if output is not None and not agrees(output, problem):
            wrong[problem.kind] = output
    if not wrong:
        return None
    zero = not any(output.any() for output in wrong.values())
    sentence = f"returns {'zeros' if zero else 'a wrong output'} for {'; '.join(wrong)}"
    if len(wrong) < len(kinds):
        sentence += ", and the right output for others"
    by_what = "0" * zero
    return Diagnosis("depends_on_values", sentence, np.inf, by_what=by_what)


def refused(target: Target, scope: Scope) -> Diagnosis | None:
    """Observe calls that a target refuses: no token, its own states, rows left over.

    It raises, or returns an output of another shape.
    """
    contract, calls = scope.contract, list[tuple[str, str, Call]]()
    problem = calm_call(scope, REFUSED)
    if not contract.shortest:
        calls.append(("no token", "min_length=1", Call(problem.prefix(0).inputs)))
    each = contract.length_multiple_of
    if scope.interface.takes_state:
        asking = Call(problem.inputs, wants_state=True)
        calls.append(("a call for its final state", "takes_state=false", asking))
        first = each * math.ceil(max(contract.shortest, 1) / each)
        parts = calm_call(scope, (1, 2, 2 * first, 4, 5))
        if parts.length == 2 * first:
            words = "a call with the state that it returned"
            going_on = Call(parts.inputs, cuts=(first,))
            calls.append((words, "takes_state=false", going_on))
    one = problem.first_of_batch()
    edges = 0, each, one.length - each
    if not_packed(scope) is None and contract.packing != "full" and edges[2] > each:
        words = "packed sequences that end before the arrays"
        calls.append((words, "packing=full", Call(one.inputs, segments=(edges,))))
    said: dict[str, str] = {}
    for words, declaration, call in calls:
        try:
            reply = target.call(call)
        except TargetRaised as error:
            said.setdefault(declaration, f"raises on {words}: {error}")
        else:
            if reply.output is not None and reply.shape != reply.expected_shape:
                shapes = f"{reply.shape} in place of {reply.expected_shape}"
                said.setdefault(declaration, f"returns the shape {shapes} for {words}")
    if not said:
        return None
    return Diagnosis("raises_if_asked", "; ".join(said.values()), np.inf, tuple(said))


def right_where_dense(target: Target, problem: Problem) -> Diagnosis | None:
    """Observe outputs that are wrong for impulses, and right for sums of them.

    An output is linear in values: if it is right for sums of values for which it is
    wrong, it depends on how many of them are zero, and no weight is to blame.

    Parameters
    ----------
    target : Target
        Loaded; it is called twice.
    problem : Problem
        Impulses in values, whose outputs are wrong.
    """
    value = problem.value
    count = value.shape[-1]
    signs = np.random.default_rng(0).choice((-1.0, 1.0), (count, count))
    sums = problem.with_inputs(value=(value @ signs).astype(value.dtype))
    one, other = (target.call(Call(x.inputs)).output for x in (problem, sums))
    if one is None or other is None or not agrees(other, sums):
        return None
    added = in_float64(one) @ signs
    if agrees(added, sums):
        return None
    zero = not one.any()
    sentence = (
        f"returns {'zeros' if zero else 'a wrong output'} where most values are 0, and "
        "the right output for sums of such values"
    )
    name = "depends_on_values"
    return Diagnosis(name, sentence, np.inf, by_what="0" * zero)


def adds_up(target: Target, scope: Scope, names: Collection[str]) -> bool:
    """Return True if outputs of two halves add up to that of their sum.

    The halves are of the input in which maps have impulses: outputs that are not linear
    in it have no weights, and what holds of impulses alone explains nothing. Calls have
    the inputs of some names.
    """
    name, whole = carrier(scope), calm_call(scope)
    whole = whole.without(*({*whole.inputs} - {*names}))
    x = whole.inputs[name]
    odd = np.arange(x.shape[2])[:, None] % 2 == 1
    halves = (whole.with_inputs(**{name: x * part}) for part in (odd, ~odd))
    outputs, allowed = [], np.zeros(1)
    for problem in (whole, *halves):
        output = target.call(Call(problem.inputs)).output
        exact = problem.solve()
        if output is None or output.shape != exact.output.shape:
            return False
        outputs.append(in_float64(output))
        allowed = allowed + SLACK * exact.once_stored(scope.output_dtype)
    with np.errstate(all="ignore"):
        return bool((abs(outputs[0] - outputs[1] - outputs[2]) <= allowed).all())


def _dtype(target: Target, scope: Scope) -> Diagnosis | None:
    """Observe an output of another dtype."""
    dtype = target.call(Call(calm_call(scope).inputs)).dtype
    if dtype == scope.output_dtype:
        return None
    sentence = f"returns {dtype} instead of {scope.output_dtype}"
    declared = (f"output_dtype={dtype}",) * (dtype in SIGNIFICAND_BITS)
    return Diagnosis("returns_other_dtype", sentence, declaration=declared)
