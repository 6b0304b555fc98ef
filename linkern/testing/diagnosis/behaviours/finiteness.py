"""Results that are not finite, though the exact ones are: from which inputs on."""

from bisect import bisect_left
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np

from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.diagnosis.behaviours.histories import is_right
from linkern.testing.diagnosis.calm import calm_call
from linkern.testing.diagnosis.diagnosis import Diagnosis
from linkern.testing.diagnosis.sizes import CHUNKS
from linkern.testing.errors import TargetRaised
from linkern.testing.problems.context import Scope
from linkern.testing.problems.gates import with_decays
from linkern.testing.problems.problem import Problem
from linkern.testing.target.process import Target
from linkern.testing.target.protocol import Call

__all__ = ["not_finite", "not_finite_tails"]

# Several chunks, of all usual sizes.
LONG_SIZES = (1, 2, 300, 4, 5)
# How far inputs are scaled, in powers of two, and steps between two powers.
FURTHEST, STEPS = 20, 16
# Log-decays of all tokens: the first that a target takes is proposed as its floor.
FLOORS = (-1e4, -100.0, -20.0, -5.0, -1.0)
# Numbers that each dtype can hold.
LARGEST = dict.fromkeys(SIGNIFICAND_BITS, 3e38) | {"float16": 6e4}


def not_finite(target: Target, scope: Scope) -> Diagnosis | None:
    """Observe how large an input is at which the output is no longer finite."""
    problem = calm_call(scope)
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
        problem = calm_call(scope, (1, 2, length, 4, 5))
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
    problems = [calm_call(scope, LONG_SIZES)]
    if scope.dtype == "float64":  # A floor holds in float32 as well, if that is taken.
        narrow = calm_call(replace(scope, dtype="float32"), LONG_SIZES)
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
