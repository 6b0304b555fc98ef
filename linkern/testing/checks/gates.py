"""Laws of gated operators: neutral and extreme gates, reductions, shards."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import Bounded, Reduction
from linkern.testing.checks.assertions import CheckedTarget
from linkern.testing.checks.findings import NOT_FINITE, Violation
from linkern.testing.checks.gradients import require_gradients
from linkern.testing.checks.registry import (
    Condition,
    any_of,
    check,
    no_gradients,
    no_state,
    not_linear_in_values,
)
from linkern.testing.checks.span_map import (
    PROBES,
    final_memory,
    measure_span_map,
)
from linkern.testing.checks.states import final_states, stateless
from linkern.testing.errors import (
    DoesNotApply,
    Inapplicable,
    covered,
    not_applicable,
    skipped,
)
from linkern.testing.problems import strategies as draws
from linkern.testing.problems.context import Scope
from linkern.testing.problems.forms import is_raw
from linkern.testing.problems.gates import with_decays
from linkern.testing.problems.generators import with_cotangent
from linkern.testing.problems.mixture import any_gradient, any_problem, of_sort
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.reductions import inputs_of_other, restricted
from linkern.testing.problems.shapes import longest
from linkern.testing.spec.operators import OPERATORS
from linkern.testing.target.protocol import in_float64

__all__ = [
    "decay_extremes",
    "gradient_causality",
    "option_neutrality",
    "reduction",
    "shard_law",
    "state_linearity",
    "time_reversal_adjoint",
]

# From no decay at all to one that leaves nothing, in every format.
EXTREMES = (0.0, -1e-4, -1.0, -5.0, -20.0, -88.0, -1e4, -np.inf)

# Beside integers, whose gates are none or all.
_real = of_sort("reals", "random")


# -- optional gates


def _omissible(scope: Scope) -> tuple[str, ...]:
    """Return the inputs that may be left out, but raw ones: none of them is neutral."""
    operator, contract = scope.operator, scope.contract
    names = scope.omissible
    return tuple(name for name in names if not is_raw(contract, operator.input(name)))


def _no_omissible(scope: Scope) -> Inapplicable | None:
    """Require a gate that may be left out: a parameter with a default."""
    if not any(one.optional for one in scope.operator.inputs):
        return not_applicable("the operator has no gate that could be left out")
    if _omissible(scope):
        return None
    reason = "it has no gate that could be left out"
    return skipped(reason, "give optional gates a default")


@check(
    "a gate that is not given is neutral: it forgets nothing, and erases as much as it "
    "would with a rate of one",
    problems=lambda scope: any_problem(scope, "reals"),
    judges=_real,
    unless=_no_omissible,
    share=0.6,
    relation=True,
)
def option_neutrality(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: defaults of the wrong value, gates that are required in secret, defaults
    that are made after padding and change the state, backward passes without them.

    Fix: A missing log-decay acts as 0 and a missing rate as 1: put that value in at the
    entry, or skip the factor. Test `is None`: a gate of zeros is a gate.
    """
    names = _omissible(problem.scope)
    # One may be taken for another that is missing: each in turn, then all at once.
    sets = tuple(dict.fromkeys([*((name,) for name in names), names]))
    for omitted in sets:
        left = problem.without(*omitted)
        message = f"without its {', '.join(omitted)} the output is not that of a "
        message += "neutral one"
        target.require_within(target.run(left), left.solve(), left, message)
    if stateless(problem.scope) is None:
        _neutral_in_states(target, problem, sets)
    if no_gradients(problem.scope) is None:
        _neutral_in_gradients(target, problem, names)


def _neutral_in_states(
    target: CheckedTarget, problem: Problem, sets: Sequence[tuple[str, ...]]
) -> None:
    """Require states to be right without some inputs, where they are with all."""
    try:
        whole = [*final_states(target, problem)]
    except (DoesNotApply, Violation):  # It returns no such state: `state_value` tells.
        return
    for _, got, expected, stored in whole:
        if not target.is_within(got, expected, problem, "state_value", stored):
            return
    for omitted in sets:
        left = problem.without(*omitted)
        for name, got, expected, stored in final_states(target, left):
            message = f"without its {', '.join(omitted)} the {name} after the last "
            message += "token is not that of a neutral one"
            if np.isfinite(expected.bound).all():  # else nothing is proved
                target.require_within(got, expected, left, message, stored)


def _neutral_in_gradients(
    target: CheckedTarget, problem: Problem, names: tuple[str, ...]
) -> None:
    """Require gradients to be right without some inputs, where they are with all."""
    drawn = with_cotangent(problem, np.random.default_rng(problem.length))
    try:
        gradients = target.gradients(drawn)
    except (DoesNotApply, Violation):  # It has none of these: `gradient_value` tells.
        return
    exact, stored = drawn.solve_gradients(), problem.scope.dtype
    for name, got in gradients.items():
        if not target.is_within(got, exact[name], drawn, "gradient_value", stored):
            return
    left = drawn.without(*names)
    message = f"without its {', '.join(names)} the gradient of the {{name}} is not "
    bounds = (one.bound for one in left.solve_gradients().values())
    if all(np.isfinite(bound).all() for bound in bounds):  # else nothing is proved
        require_gradients(target, left, message + "that of a neutral one")


# -- extreme gates


def _no_decays(scope: Scope) -> Inapplicable | None:
    """Require an operator with log-decays."""
    if "log_decay" in scope.operator.names:
        return None
    return not_applicable("the operator takes no decays")


@check(
    "decays may be anything between none and all: the output is finite, and right as "
    "far as a bound can be proved",
    problems=any_problem,
    judges=_real,
    unless=_no_decays,
    share=0.5,
)
def decay_extremes(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: quotients of decays, differences of infinities, overflow in chunks.

    Fix: Take exponentials of sums of log-decays over a span, masked to the past first:
    such a sum is never positive, and a difference of cumulative sums may be `-inf -
    -inf`. Never divide by a decay. If strong decays are not supported, declare
    `decay_floor`.
    """
    rng = np.random.default_rng(problem.length)
    shape = problem.inputs["log_decay"].shape
    extreme = with_decays(problem, rng.choice(EXTREMES, shape))
    output = target.run(extreme)
    if not np.isfinite(output).all():
        message = "decays at the ends of their range make the output not finite"
        raise Violation(message, extreme, deviation=NOT_FINITE)
    expected = extreme.solve()
    # Where no bound is proved, only finite outputs are required.
    provable = np.isfinite(expected.bound)
    exact = np.where(provable, expected.output, output)
    bound = np.where(provable, expected.bound, 0.0)
    message = "the output is wrong where decays are at the ends of their range"
    target.require_within(output, Bounded(exact, bound), extreme, message)


# -- one operator inside another


def _irreducible(scope: Scope) -> Inapplicable | None:
    """Require an operator that contains a simpler one."""
    if _reductions(scope):
        return None
    return not_applicable("no simpler operator is known to be inside it")


def _reductions(scope: Scope) -> tuple[Reduction, ...]:
    """Return the reductions whose inputs the target can take.

    Raw gates that are equal in all channels have other meanings there.
    """
    raw = {x.name for x in scope.operator.inputs if is_raw(scope.contract, x)}
    return tuple(x for x in scope.operator.reductions if raw.isdisjoint(x.spread))


@check(
    "with gates that are open, equal or zero, an operator is the simpler one that it "
    "contains",
    problems=lambda scope: draws.with_choice(
        any_problem(scope), reduced=_reductions(scope)
    ),
    judges=_real,
    unless=_irreducible,
    share=0.4,
)
def reduction(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: shortcuts for special gates, and what general ones get wrong there.

    Fix: Open the gate (log-decay 0, rate 1) and look for the factor or the term that
    should have gone. A branch for special gates must compute what the general path
    computes there.
    """
    reduced: Reduction = problem.knobs["reduced"]
    named = {**problem.knobs, "reduced": reduced.to}
    inside = replace(restricted(problem, reduced), knobs=named)
    scope = problem.scope
    scale = scope.contract.factor(scope.operator.scale, problem.sizes["k"])
    simpler_scope = replace(
        scope,
        operator=OPERATORS[reduced.to],
        contract=replace(scope.contract, scale=scale),
    )
    other = replace(
        inside, scope=simpler_scope, inputs=inputs_of_other(inside, reduced)
    )
    general, simpler = inside.solve(), other.solve()
    # It may round as often as the operator that it claims to be.
    expected = Bounded(simpler.output, np.maximum(general.bound, simpler.bound))
    message = f"where it is {reduced.to}, the output is another"
    target.require_within(target.run(inside), expected, inside, message)


# -- states and gradients


def _pairwise(check: str) -> Condition:
    """Return the condition of a law that `check` covers for linear attention."""

    def unless(scope: Scope) -> Inapplicable | None:
        """Require an operator without a feature map."""
        reason = f"{check} says so of the outputs"
        return covered(reason) if scope.operator.feature_map else None

    return unless


@check(
    "what a state carries is linear in the values: two parts of them, each cut, add up "
    "to the whole, cut",
    problems=lambda scope: draws.with_cuts(any_problem(scope)),
    judges=_real,
    unless=any_of(
        _pairwise("additivity_of_values"),
        no_state,
        not_linear_in_values,
    ),
    share=0.2,
    relation=True,
)
def state_linearity(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: states that are clipped, thresholded or normalised on the way.

    Fix: Remove clamps, saturation and normalisation of the memory between spans: the
    memory that is carried is linear in the values.
    """
    cuts = problem.knobs["cuts"]
    if not cuts:
        return
    mask = np.arange(problem.value.shape[-2])[:, None] % 2 == 0
    halves = [np.where(mask, problem.value, 0), np.where(mask, 0, problem.value)]
    dtype = problem.value.dtype
    parts = [problem.with_inputs(value=half.astype(dtype)) for half in halves]
    outputs = []
    for one in (problem, *parts):
        reply = target.split(one, cuts)
        assert reply.output is not None
        outputs.append(in_float64(reply.output))
    stored = problem.scope.output_dtype
    allowed = np.sum([x.solve().once_stored(stored) for x in (problem, *parts)], axis=0)
    message = "the outputs for two parts of the values, both cut, do not add up"
    target.require_close(outputs[1] + outputs[2], outputs[0], allowed, problem, message)


def _irreversible(scope: Scope) -> Inapplicable | None:
    """Require an operator that is its own adjoint in reversed time."""
    if scope.contract.l2norm is not None:
        return not_applicable("it normalises queries and keys, but not cotangents")
    if scope.operator.reversal is not None:
        return None
    reason = "the operator is not its own adjoint when time runs backwards"
    return not_applicable(reason)


@check(
    "the gradient of the values is the operator itself, run backwards on the cotangent",
    problems=any_gradient,
    unless=any_of(_irreversible, no_gradients),
    share=0.5,
    in_outputs=False,
    relation=True,
)
def time_reversal_adjoint(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: gradients whose decays are off by one token; needs no reference.

    Fix: Backwards in time, the gradient of the state passes from token t + 1 to token t
    with the decay of t + 1, and then takes up the cotangent of token t. A decay that is
    used one token too early or too late is the usual slip.
    """
    assert problem.cotangent is not None
    if problem.shape.groups > 1:
        return
    swapped = {"query": "key", "key": "query"}
    backwards: dict[str, NDArray[Any]] = {}
    for name in problem.inputs:
        x = problem.inputs[swapped.get(name, name)]
        axis = problem.scope.operator.input(name).token_axis
        if name == "value":
            x = problem.cotangent.astype(x.dtype)
        if name == "log_decay" and problem.scope.operator.reversal:
            # Between two tokens lie the decays after the first: now it is the last.
            assert axis is not None
            x = np.roll(x, -1, axis)
        backwards[name] = x if axis is None else np.flip(x, axis).copy()
    mirrored = replace(problem.with_inputs(**backwards), cotangent=None)
    of_value = target.gradients(problem)["value"]
    again = target.run(mirrored)[..., ::-1, :]
    stored, scope = problem.scope.output_dtype, problem.scope
    allowed = problem.solve_gradients()["value"].once_stored(scope.dtype)
    allowed = allowed + mirrored.solve().once_stored(stored)[..., ::-1, :]
    message = "the gradient of the value is not the operator run backwards"
    target.require_close(of_value, again, allowed, problem, message)


def _not_affine(scope: Scope) -> Inapplicable | None:
    """Require an operator with known tokens that write any state."""
    contract = scope.contract
    if scope.operator.unit_writes is None:
        reason = "no tokens are known that write any state of the operator"
        return not_applicable(reason)
    if contract.l2norm is not None or contract.length_multiple_of > 1:
        reason = "the contract does not allow the tokens that would write a state"
        return not_applicable(reason)
    return None


@check(
    "what a span does to a state is affine: measured on unit states, it says what the "
    "span makes of the state that an earlier one leaves, as shards of a sequence do",
    problems=lambda scope: draws.with_cut(any_problem(scope)),
    judges=lambda problem: _real(problem) and problem.length > 1,
    unless=any_of(_not_affine, no_state),
    share=0.2,
    in_outputs=False,
    relation=True,
)
def shard_law(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: spans that treat a state they were handed unlike one they wrote.

    Fix: Treat a state that was handed over as one that the span wrote itself: decay it
    and erase from it alike. Look at the first chunk, where `initial_state` enters.
    """
    sizes, cut = problem.sizes, problem.knobs["cut"]
    if -(-sizes["k"] // max(sizes["v"], 1)) > PROBES or sizes["k"] == 0:
        return
    if problem.length - cut + sizes["k"] > longest(problem.scope):
        return
    first, second = problem.span(0, cut), problem.span(cut, problem.length)
    whole = final_memory(target, problem)
    composed = measure_span_map(target, second).apply(final_memory(target, first))
    allowed = composed.bound + whole.bound
    if not np.isfinite(allowed).all():
        return  # no bound is proved for such gates
    message = f"the shards cut at {cut}, composed, are not what the whole leaves"
    target.require_close(composed.output, whole.output, allowed, problem, message)


@check(
    "gradients look back only: where no later output counts, the gradient is zero, and "
    "not what is left when a sum is taken from another",
    problems=lambda scope: draws.with_cut(any_gradient(scope)),
    unless=any_of(_pairwise("causality"), no_gradients),
    share=0.3,
    in_outputs=False,
    relation=True,
)
def gradient_causality(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: sums from the end formed by subtraction, and masked after the fact.

    Fix: Form sums from the end by adding from the end, not as the total minus the sum
    from the start: that leaves rounding errors where zero belongs. Mask before the sum,
    not after it.
    """
    cut = problem.knobs["cut"]
    assert problem.cotangent is not None
    cotangent = problem.cotangent.copy()
    cotangent[..., cut:, :] = 0
    early = replace(problem, cotangent=cotangent)
    gradients, expected = target.gradients(early), early.solve_gradients()
    for one in problem.scope.operator.inputs:
        axis = one.token_axis
        if axis is None or one.name not in gradients:
            continue
        each = problem.inputs[one.name].shape[axis] // problem.length
        late = (*(slice(None),) * axis, slice(cut * each, None))
        bounded = expected[one.name]
        message = f"no output from token {cut} on counts, but the {one.name} does there"
        late_bounded = Bounded(bounded.output[late], bounded.bound[late])
        got, stored = gradients[one.name][late], problem.scope.dtype
        target.require_within(got, late_bounded, early, message, stored, one.axes)
