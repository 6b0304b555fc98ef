"""Behaviours of calls that no influence map holds: crashes, NaN, memory, side effects.

Each is observed in replies to repeated and varied calls, and said with the numbers at
which it starts. What is asked before the maps explains why they mean nothing; what is
asked after them explains a target whose maps are right.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.checks.packed import not_packed
from linkern.testing.diagnosis.broken_laws import broken_law
from linkern.testing.diagnosis.diagnosis import Diagnosis
from linkern.testing.diagnosis.histories import agrees, is_right, kept_between_calls
from linkern.testing.diagnosis.sizes import CHUNKS, in_words
from linkern.testing.diagnosis.slopes import slope_at_zero
from linkern.testing.errors import DoesNotApply, TargetRaised
from linkern.testing.influence.scenes import carrier
from linkern.testing.problems.context import Scope
from linkern.testing.problems.gates import with_decays
from linkern.testing.problems.generators import real_problem, with_cotangent
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.shapes import Sizes, nearest_shape
from linkern.testing.target.process import Target
from linkern.testing.target.protocol import Call, in_float64

__all__ = [
    "Observe",
    "adds_up",
    "not_finite",
    "not_finite_tails",
    "observed_after",
    "observed_before",
    "refused",
    "right_where_dense",
]

Observe = Callable[[Target, Scope], Diagnosis | None]
# Batch, heads, length, key and value dimension: no two axes are of one size.
SIZES = (2, 3, 47, 4, 5)
# Sizes of one axis each, which calls try one after the other; the first two alone
# where each shape is compiled.
LONG = (100, 128, 130, 192, 256)
TRIED = {
    "lengths": (2, (17, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 47, 48, 64, 65, 96, *LONG)),
    "key dimensions": (3, (4, 1, 2, 3, 8, 12, 16, 17, 24, 32, 48, 64, 65, 128, 136)),
    "value dimensions": (4, (5, 1, 2, 4, 8, 12, 16, 17, 24, 32, 48, 64, 65, 128, 136)),
    "numbers of heads": (1, (2, 1, 3, 4)),
    "batch sizes": (0, (1, 2, 3, 4)),
}
REFUSED = (1, 2, 17, 4, 5)
# Several chunks, of all usual sizes.
LONG_SIZES = (1, 2, 300, 4, 5)
# The most features and numbers of the memory in a call that tries a size: of products
# of channels, a kernel or the oracle may hold many times as many.
MOST_NUMBERS = 2**20
AXES = ("batch", "heads", "length", "key_dim", "value_dim")
# Names of outputs with swapped axes.
SWAPPED = (
    ("output_transposed", "last two axes", (-2, -1)),
    ("output_layout_swapped", "axes of heads and tokens", (1, 2)),
)
# How far inputs are scaled, in powers of two, and steps between two powers.
FURTHEST, STEPS = 20, 16
# Log-decays of all tokens: the first that a target takes is proposed as its floor.
FLOORS = (-1e4, -100.0, -20.0, -5.0, -1.0)
# Multiple of rounding by which wrong outputs may differ from their sum.
SLACK = 16.0
# Numbers that each dtype can hold.
LARGEST = dict.fromkeys(SIGNIFICAND_BITS, 3e38) | {"float16": 6e4}
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
    return _first((_form, kept_between_calls, _refusals), target, scope)


def observed_after(target: Target, scope: Scope) -> Diagnosis | None:
    """Return the behaviour of a target whose maps are right."""
    return _first(
        (_dtype, not_finite, broken_law, slope_at_zero, _numbers), target, scope
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


@lru_cache(maxsize=32)
def _problem(scope: Scope, sizes: Sizes = SIZES) -> Problem:
    """Return calm inputs of about these sizes, made once for all who ask."""
    kind = "normal" if scope.operator.feature_map else "mild"
    rng = np.random.default_rng(0)
    made = real_problem(scope, nearest_shape(scope, sizes), kind, "normal", rng)
    return with_cotangent(made, rng)


def _form(target: Target, scope: Scope) -> Diagnosis | None:
    """Observe outputs of another type, or with their axes in another order."""
    problem = _problem(scope)
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


def _refusals(target: Target, scope: Scope) -> Diagnosis | None:
    """Observe the allowed sizes on which a target raises, or loses an axis."""
    observed = []
    for noun, (axis, sizes) in TRIED.items():
        raised: dict[int, str] = {}
        reshaped: dict[int, str] = {}
        tried = set()
        for size in sizes[: 2 if scope.few_shapes else None]:
            b, h, t, k, v = (size if i == axis else n for i, n in enumerate(REFUSED))
            wanted = (b, h, t, k, v)
            if _too_large(scope, wanted):
                continue
            problem = _problem(scope, wanted)
            actual = getattr(problem.shape, AXES[axis])
            tried.add(actual)
            try:
                reply = target.call(Call(problem.inputs))
            except TargetRaised as error:
                raised[actual] = str(error)
                continue
            if reply.output is not None and reply.shape != reply.expected_shape:
                reshaped[actual] = f"{reply.shape} in place of {reply.expected_shape}"
        for failed, verb, name, on_one in (
            (raised, "raises", "raises", "raises_on_one_token"),
            (reshaped, "returns another shape", *("returns_other_shape",) * 2),
        ):
            if failed:
                where, declared = in_words(noun, failed, tried)
                sentence = f"{verb} on {where}: {failed[min(failed)]}"
                said = on_one if where == "one token" else name
                refusal = Diagnosis(said, sentence, np.inf, declared)
                observed.append((failed.keys() == tried, refusal))
    return min(observed, key=lambda one: one[0], default=(True, None))[1]


def _too_large(scope: Scope, sizes: Sizes) -> bool:
    """Return True if a call of about these sizes has very many features."""
    shape = nearest_shape(scope, sizes)
    features, memory = shape.numbers_per_token(scope.operator)
    return max(shape.length, shape.keys) * features + memory > MOST_NUMBERS


def not_finite(target: Target, scope: Scope) -> Diagnosis | None:
    """Observe how large an input is at which the output is no longer finite."""
    problem = _problem(scope)
    powers = range(FURTHEST * STEPS + 1)
    for name in ("log_decay", "key", "query", "value", "slots"):
        if name not in problem.inputs:
            continue
        scaled = partial(_scaled, problem, name)
        first = bisect_left(powers, True, key=lambda n: not _finite(target, scaled(n)))
        if first == len(powers) and name == "log_decay":
            forgotten = _not_finite_after_reset(target, problem)
            if forgotten is not None:
                return forgotten
        if first in (0, len(powers)) or not _is_expected_finite(scaled(first)):
            continue
        high, low = (
            abs(scaled(n).inputs[name].astype(float)) for n in (first, first - 1)
        )
        sign = "-" if name == "log_decay" else ""
        sentence = (
            f"returns {_not_finite_kind(target, scaled(first))} where {name} reaches "
            f"{sign}{high.max():.3g} (finite at {sign}{low.max():.3g}); "
            "the exact output is finite"
        )
        floor = _floor(target, scope) if name == "log_decay" else ()
        return Diagnosis("not_finite", sentence, np.inf, floor)
    return None


def not_finite_tails(target: Target, scope: Scope, name: str) -> Diagnosis | None:
    """Observe for which lengths a gradient is finite: those without a tail alone.

    A backward pass divides by the rows of its padding, whose denominators are 0.
    """

    def is_finite(length: int) -> bool:
        problem = _problem(scope, (1, 2, length, 4, 5))
        reply = target.call(Call(problem.inputs, cotangent=problem.cotangent))
        gradients = dict(zip(problem.inputs, reply.gradients or (), strict=False))
        return bool(np.isfinite(gradients.get(name, np.nan)).all())

    chunk = next(filter(is_finite, CHUNKS), None)
    if chunk is None or not is_finite(2 * chunk) or is_finite(2 * chunk + 1):
        return None
    stage, where = f"gradient of {name}", f"lengths that are no multiple of {chunk}"
    sentence = (
        f"the {stage} is not finite where the length is no multiple of {chunk}; the "
        "exact one is finite"
    )
    return Diagnosis("not_finite", sentence, np.inf, stage=stage, where=where)


def _not_finite_after_reset(target: Target, problem: Problem) -> Diagnosis | None:
    """Observe outputs that are not finite after a token that forgets everything."""
    axis = problem.scope.operator.input("log_decay").token_axis
    if axis is None or not _can_declare_a_floor(problem.scope):
        return None
    log_decay = problem.inputs["log_decay"].copy()
    np.moveaxis(log_decay, axis, 0)[:: max(problem.length // 3, 1)] = -np.inf
    reset = problem.with_inputs(log_decay=log_decay)
    if _finite(target, reset) or not _is_expected_finite(reset):
        return None
    sentence = (
        f"returns {_not_finite_kind(target, reset)} where log_decay is -inf; "
        "the exact output is finite"
    )
    floor = _floor(target, problem.scope)
    return Diagnosis("not_finite", sentence, np.inf, floor)


def _floor(target: Target, scope: Scope) -> tuple[str, ...]:
    """Return the declaration of the strongest decay at all tokens that is right."""
    if not _can_declare_a_floor(scope):
        return ()
    problems = [_problem(scope, LONG_SIZES)]
    if scope.dtype == "float64":  # A floor holds in float32 as well, if that is taken.
        narrow = _problem(replace(scope, dtype="float32"), LONG_SIZES)
        with suppress(TargetRaised):
            target.call(Call(narrow.inputs))
            problems.append(narrow)
    for floor in FLOORS:
        if all(_is_right_at(target, problem, floor) for problem in problems):
            return (f"decay_floor={floor:g}",)
    return ()


def _is_right_at(target: Target, problem: Problem, floor: float) -> bool:
    """Return True if the output is right where all log-decays are at a floor."""
    decays = np.full(problem.inputs["log_decay"].shape, floor)
    return is_right(target, with_decays(problem, decays))


def _can_declare_a_floor(scope: Scope) -> bool:
    """Return True for log-decays that may be -inf."""
    contract = scope.contract
    return contract.decay_form == "log" and contract.decay_floor == -np.inf


def _not_finite_kind(target: Target, problem: Problem) -> str:
    output = target.call(Call(problem.inputs)).output
    return "NaN" if np.isnan(np.asarray(output)).any() else "an infinity"


def _scaled(problem: Problem, name: str, steps: int) -> Problem:
    """Return a problem with one input times a power of two, within its floor."""
    x = problem.inputs[name]
    low, high = -LARGEST[problem.scope.dtype], LARGEST[problem.scope.dtype]
    if name == "log_decay":
        low = max(low, problem.scope.contract.decay_floor)
    scaled = np.clip(x.astype(np.float64) * 2.0 ** (steps / STEPS), low, high)
    return problem.with_inputs(**{name: scaled.astype(x.dtype)})


def _finite(target: Target, problem: Problem) -> bool:
    output = target.call(Call(problem.inputs)).output
    return output is None or bool(np.isfinite(output).all())


def _is_expected_finite(problem: Problem) -> bool:
    exact = problem.solve()
    with np.errstate(all="ignore"):
        sizes = abs(exact.output) + exact.bound
        return bool((sizes < LARGEST[problem.scope.output_dtype]).all())


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
    problem = _problem(scope, REFUSED)
    if not contract.shortest:
        calls.append(("no token", "min_length=1", Call(problem.prefix(0).inputs)))
    each = contract.length_multiple_of
    if scope.interface.takes_state:
        asking = Call(problem.inputs, wants_state=True)
        calls.append(("a call for its final state", "takes_state=false", asking))
        first = each * math.ceil(max(contract.shortest, 1) / each)
        parts = _problem(scope, (1, 2, 2 * first, 4, 5))
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
    name, whole = carrier(scope), _problem(scope)
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
    dtype = target.call(Call(_problem(scope).inputs)).dtype
    if dtype == scope.output_dtype:
        return None
    sentence = f"returns {dtype} instead of {scope.output_dtype}"
    declared = (f"output_dtype={dtype}",) * (dtype in SIGNIFICAND_BITS)
    return Diagnosis("returns_other_dtype", sentence, declaration=declared)
