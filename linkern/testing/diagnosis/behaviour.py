"""Behaviours of calls that no influence map holds: crashes, NaN, memory, side effects.

Each is observed in replies to repeated and varied calls, and said with the numbers at
which it starts. What is asked before the maps explains why they mean nothing; what is
asked after them explains a target whose maps are right.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np

from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.checks.registry import no_gradients, not_thread_safe
from linkern.testing.diagnosis.arrangements import other_bits
from linkern.testing.diagnosis.diagnosis import Diagnosis
from linkern.testing.diagnosis.histories import agrees, kept_between_calls
from linkern.testing.diagnosis.sizes import in_words
from linkern.testing.errors import DoesNotApply, TargetRaised
from linkern.testing.problems.context import Scope
from linkern.testing.problems.generators import real_problem, with_cotangent
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.shapes import Sizes, nearest_shape
from linkern.testing.target.process import Target
from linkern.testing.target.protocol import Call, Reply

__all__ = ["Observe", "not_finite", "observed_after", "observed_before"]

Observe = Callable[[Target, Scope], Diagnosis | None]
# Batch, heads, length, key and value dimension: no two axes are of one size.
SIZES, BUSY = (2, 3, 47, 4, 5), (1, 2, 129, 16, 17)
# Sizes of one axis each, which calls try one after the other; the first alone where
# each shape is compiled.
LONG = (100, 128, 130, 192, 256)
TRIED = {
    "lengths": (2, (17, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 47, 48, 64, 65, 96, *LONG)),
    "key dimensions": (3, (4, 1, 2, 3, 8, 12, 16, 17, 24, 32, 48, 64, 65, 128, 136)),
    "value dimensions": (4, (5, 1, 2, 4, 8, 12, 16, 17, 24, 32, 48, 64, 65, 128, 136)),
    "numbers of heads": (1, (2, 1, 3, 4)),
    "batch sizes": (0, (1, 2, 3, 4)),
}
REFUSED = (1, 2, 17, 4, 5)
AXES = ("batch", "heads", "length", "key_dim", "value_dim")
# Memory around inputs of these layouts holds NaN.
POISONED = {"offset", "sliced", "padded"}
# How far inputs are scaled, in powers of two, and steps between the last two powers.
FURTHEST, STEPS = 20, 4
THREADED_CALLS = 2
# Kinds of problems with features, and with gates.
FEATURES, GATES = ("normal", "uniform", "constant"), ("mild", "typical", "strong")


def observed_before(target: Target, scope: Scope) -> Diagnosis | None:
    """Return the behaviour because of which a map would mean nothing.

    Parameters
    ----------
    target : Target
        Behind its fence.
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
    inputs = (_side_effects, not_finite, _memory, _swallowed_nan, _numbers)
    return _first((*inputs, other_bits, _threads), target, scope)


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
        sentence = f"returns a {reply.kind} instead of an array"
        return Diagnosis("returns_other_type", sentence, np.inf)
    if agrees(reply.output, problem):
        return None
    orders = (
        ("output_transposed", "last two axes", (-2, -1)),
        ("output_layout_swapped", "axes of heads and tokens", (1, 2)),
    )
    for name, axes, swapped in orders if reply.output.ndim > 3 else ():
        back = np.swapaxes(reply.output, *swapped)
        sizes = np.swapaxes(np.zeros(problem.solve().output.shape), *swapped).shape
        same = reply.output.size == np.prod(sizes)
        reread = np.swapaxes(reply.output.reshape(sizes), *swapped) if same else back
        if agrees(back, problem) or agrees(reread, problem):
            sentence = f"returns the output with its {axes} swapped"
            return Diagnosis(name, sentence, np.inf)
    if reply.shape != reply.expected_shape:
        sentence = f"returns the shape {reply.shape} instead of {reply.expected_shape}"
        return Diagnosis("returns_other_shape", sentence, np.inf)
    return None


def _refusals(target: Target, scope: Scope) -> Diagnosis | None:
    """Observe the allowed sizes on which a target raises."""
    everywhere = None
    for noun, (axis, sizes) in TRIED.items():
        raised: dict[int, str] = {}
        tried = set()
        for size in sizes[: 2 if scope.few_shapes else None]:
            wanted = list(REFUSED)
            wanted[axis] = size
            problem = _problem(scope, (*wanted,))
            actual = [getattr(problem.shape, name) for name in AXES][axis]
            tried.add(actual)
            try:
                target.call(Call(problem.inputs))
            except TargetRaised as error:
                raised[actual] = str(error)
        if raised:
            where, declaration = in_words(noun, raised, tried)
            name = "raises_on_one_token" if where == "one token" else "raises"
            sentence = f"raises on {where}: {raised[min(raised)]}"
            observed = Diagnosis(name, sentence, np.inf, declaration)
            if raised.keys() != tried:
                return observed
            everywhere = everywhere or observed
    return everywhere


def not_finite(target: Target, scope: Scope) -> Diagnosis | None:
    """Observe how large an input is at which the output is no longer finite."""
    problem = _problem(scope)
    for name in ("log_decay", "key", "query", "value", "slots"):
        if name not in problem.inputs:
            continue
        low = -1.0
        while low < FURTHEST and _finite(target, problem, name, low + 1):
            low += 1
        if low in (-1, FURTHEST):
            continue
        high = low + 1
        if not _is_expected_finite(_scaled(problem, name, high)):
            continue
        for _ in range(STEPS):
            middle = (low + high) / 2
            fine = _finite(target, problem, name, middle)
            low, high = (middle, high) if fine else (low, middle)
        sizes = [
            abs(_scaled(problem, name, n).inputs[name].astype(float)).max()
            for n in (high, low)
        ]
        sign = "-" if name == "log_decay" else ""
        output = target.call(Call(_scaled(problem, name, high).inputs)).output
        kind = "NaN" if np.isnan(np.asarray(output)).any() else "an infinity"
        sentence = (
            f"returns {kind} where {name} reaches {sign}{sizes[0]:.3g} "
            f"(finite at {sign}{sizes[1]:.3g}); the exact output is finite"
        )
        return Diagnosis("not_finite", sentence, np.inf)
    return None


def _scaled(problem: Problem, name: str, power: float) -> Problem:
    """Return a problem with one input times a power of two, within its floor."""
    x = problem.inputs[name]
    with np.errstate(over="ignore"):
        scaled = x.astype(np.float64) * 2.0**power
    if name == "log_decay":
        scaled = np.maximum(scaled, problem.scope.contract.decay_floor)
    return problem.with_inputs(**{name: scaled.astype(x.dtype)})


def _finite(target: Target, problem: Problem, name: str, power: float) -> bool:
    scaled = _scaled(problem, name, power)
    if not np.isfinite(scaled.inputs[name].astype(np.float64)).all():
        return False
    output = target.call(Call(scaled.inputs)).output
    return output is None or bool(np.isfinite(output).all())


def _is_expected_finite(problem: Problem) -> bool:
    if not all(np.isfinite(x.astype(float)).all() for x in problem.inputs.values()):
        return False
    exact = problem.solve()
    largest = 6e4 if problem.scope.output_dtype == "float16" else 3e38
    with np.errstate(all="ignore"):
        return bool((abs(exact.output) + exact.bound < largest).all())


def _memory(target: Target, scope: Scope) -> Diagnosis | None:
    """Observe inputs that are not contiguous, or have NaN around them."""
    problem = _problem(scope)
    alone = target.call(Call(problem.inputs)).output
    any_strides = scope.contract.strides != "contiguous"
    if not any_strides or alone is None or not agrees(alone, problem):
        return None
    replies = {
        style: target.call(Call(problem.inputs, memory=style))
        for style in scope.styles
        if style != "broadcast"
    }
    wrong = {
        style: reply
        for style, reply in replies.items()
        if reply.output is None or not agrees(reply.output, problem)
    }
    if wrong.keys() - POISONED:
        sentence = f"is wrong where inputs lie {' or '.join(wrong)} in memory"
        declaration = ("strides=contiguous",)
        return Diagnosis("assumes_contiguous", sentence, np.inf, declaration)
    if wrong:
        outputs = [r.output for r in wrong.values() if r.output is not None]
        rows = {int(n) for x in outputs for n in np.argwhere(np.isnan(x))[:, 2]}
        where = "in the last row" if rows == {problem.length - 1} else ""
        sentence = (
            f"returns NaN {where} where only the memory around its inputs holds any"
        )
        return Diagnosis("reads_around_inputs", " ".join(sentence.split()), np.inf)
    return None


def _swallowed_nan(target: Target, scope: Scope) -> Diagnosis | None:
    """Observe a NaN in a value that is a finite number in a later row."""
    if "value" not in scope.linear or scope.contract.nan_policy == "any":
        return None
    problem = _problem(scope)
    value, token = problem.value.copy(), problem.shape.keys // 3
    value[..., token, 0] = np.nan
    reply = target.call(Call(problem.with_inputs(value=value).inputs))
    first = token // max(problem.shape.keys // problem.length, 1)
    if reply.output is None or not reply.output.shape[-2]:
        return None
    after = reply.output[..., first if scope.operator.causal else 0 :, 0]
    if not np.isfinite(after).any():
        return None
    sentence = f"returns finite numbers in row {first} and after a NaN in its value"
    return Diagnosis("swallows_nan", sentence, np.inf, ("nan_policy=any",))


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


def _threads(target: Target, scope: Scope) -> Diagnosis | None:
    """Observe outputs that a call from another thread changes."""
    if scope.contract.mutates or not_thread_safe(scope) is not None:
        return None
    problem = _problem(scope, BUSY)
    alone = target.call(Call(problem.inputs)).output
    for _ in range(THREADED_CALLS):
        for output in target.call(Call(problem.inputs, threads=2)).other_outputs:
            if not np.array_equal(output, np.asarray(alone), equal_nan=True):
                sentence = (
                    "a call from another thread at the same time changes the output"
                )
                declaration = ("thread_safe=false",)
                return Diagnosis("not_thread_safe", sentence, np.inf, declaration)
    return None


def _side_effects(target: Target, scope: Scope) -> Diagnosis | None:
    """Observe another dtype, and all that a target does besides returning an output."""
    replies = [*_plain_replies(target, scope)]
    dtype, expected = replies[0].dtype, scope.output_dtype
    if dtype != expected:
        sentence = f"returns {dtype} instead of {expected}"
        declared = (f"output_dtype={dtype}",) * (dtype in SIGNIFICAND_BITS)
        return Diagnosis("returns_other_dtype", sentence, declaration=declared)
    changed = {x for r in replies for x in r.changed} - {*scope.contract.mutates}
    inputs = {*scope.operator.names, "initial_state"}
    if changed:
        names = ",".join(sorted({*scope.contract.mutates, *(changed & inputs)}))
        declared = (f"mutates={names}",) * (changed <= inputs)
        sentence = f"overwrites {' and '.join(sorted(changed))}"
        return Diagnosis("overwrites_input", sentence, declaration=declared)
    traces = {x for r in replies for x in r.traces}
    if traces:
        return Diagnosis("leaves_traces", f"changes {' and '.join(sorted(traces))}")
    aliased = {x for r in replies for x in r.aliased}
    if aliased:
        sentence = f"returns the memory of {' and '.join(sorted(aliased))}"
        return Diagnosis("shares_memory", sentence)
    if any(r.overwritten for r in replies):
        return Diagnosis(
            "overwrites_output", "overwrites the output of the call before"
        )
    return None


def _plain_replies(target: Target, scope: Scope) -> Iterator[Reply]:
    """Yield replies to calls of every kind: twice, in memory, in spans, backwards."""
    problem = _problem(scope)
    calls = [Call(problem.inputs)] * 2
    calls += [Call(problem.inputs, memory="offset")] * ("offset" in scope.styles)
    cut = 16 // scope.contract.length_multiple_of * scope.contract.length_multiple_of
    if scope.interface.takes_state and 0 < cut < problem.length:
        calls.append(Call(problem.inputs, cuts=(cut,), wants_state=True))
    if no_gradients(scope) is None:
        calls.append(Call(problem.inputs, cotangent=problem.cotangent))
    for at, call in enumerate(calls):
        try:
            yield target.call(call)
        except TargetRaised:
            if not at:
                raise
