"""Gradients in place of the right ones: without a part, sums, those of another input.

A key that is written and erased along has two ways back, of which a backward pass may
lose one, or a factor of one. Each is the oracle's gradient without what comes back to
one operand of an operation; no product of quantities is a sum of ways through it.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np

from linkern.oracle import Bounded
from linkern.testing.diagnosis.alternatives.changes import Change, Gradient
from linkern.testing.diagnosis.alternatives.gradient_sums import other_sums, ungrouped
from linkern.testing.diagnosis.alternatives.other_states import of_other_states
from linkern.testing.diagnosis.alternatives.parts import other_parts
from linkern.testing.diagnosis.alternatives.replacements import replacements
from linkern.testing.diagnosis.alternatives.row_memories import row_memories
from linkern.testing.diagnosis.factors.factor import Factor, by_rule, holds, tolerance
from linkern.testing.diagnosis.factors.products import product_of
from linkern.testing.influence.gradient_places import DENOMINATOR, INSIDE, NAMES
from linkern.testing.influence.maps import AXES, Index, InfluenceMap, Real
from linkern.testing.influence.scenes import per_token
from linkern.testing.problems.expected import gradient_of_meaning, gradient_without
from linkern.testing.problems.forms import form_of
from linkern.testing.problems.problem import Problem

__all__ = ["other_gradient"]

# Parts of gradients by the operand that they come back to: of the recurrence, or of the
# quotient of two.
PARTS = {
    "erase": "its part through what an erase reads",
    "key": "its part through the key that is written",
    "value": "its part through the value that is written",
    "rows": "its part through the rows of the sums that are kept",
    "log_decay": "its part through the decay",
    "query": "its part through what reads the memory",
    "denominator": "its part through the denominator",
    "sums": "its part through the sums of weights",
}
# What a gradient may be with the product of another input and its gradient.
WITH_PRODUCT = {"its sum with": 1, "it less": -1}
# Entries that tell a map, multiple of rounding that entries may be off, bits of words.
TELLING, SLACK, COST = 12, 4.0, 10.0
# Part of the error that hardly matters.
CLOSE = 0.02
# Coordinates of entries in several calls or sequences, of which no oracle call is one.
ELSEWHERE = {"span", "sequence"}


def other_gradient(maps: Sequence[InfluenceMap]) -> Factor | None:
    """Return the gradient that is in place of another in all of its wrong entries.

    Parameters
    ----------
    maps : sequence of InfluenceMap
        Maps of one gradient with wrong entries, those on fresh inputs among them.
    """
    whole = [one for one in maps if one.wrong.any() and _is_whole(one)]
    known = sorted((x.part(x.wrong) for x in whole), key=lambda one: one.exact.size)
    if sum(one.exact.size for one in known) < TELLING:
        return None
    partly = None
    for kind, words, gradient in _candidates(known[0].problem, _name(known[0])):
        if all(_holds(gradient, one) for one in known):
            factor = by_rule(kind, words, partial(_predicted, gradient), COST)
            if all(holds(factor, one, ~one.silent) for one in whole):
                return factor
            partly = partly or factor
    if partly is not None:
        return partly
    others = _of_other_states, _within_part, _of_other_calls
    return next(filter(None, (other(known) for other in others)), None)


def _of_other_states(known: Sequence[InfluenceMap]) -> Factor | None:
    """Return what another memory makes of a gradient, or a cotangent of it."""
    candidates = of_other_states(known[0].problem, _name(known[0]), PARTS)
    for words, part, gradient in candidates:
        if all(_holds(gradient, one) for one in known):
            text = f"that {words}"
            text += f", in {PARTS[part]}" if part else ""
            rule = partial(_predicted, gradient)
            return by_rule("instead", text, rule, COST)
    return None


def _of_other_calls(known: Sequence[InfluenceMap]) -> Factor | None:
    """Return the gradient in which another input, or part of it, is in place of one."""
    one = known[0]
    call, index = one.problem.oracle_call, _index(one)
    for text, change in chain(replacements(call), other_parts(call)):
        gradient = partial(_after, change)
        with np.errstate(all="ignore"):
            made = gradient(one.problem, _name(one)).output[index]
            left = abs(one.measured - made).sum()
        if left < CLOSE * one.error.sum() and all(_holds(gradient, x) for x in known):
            rule = partial(_predicted, gradient)
            return by_rule("instead", f"that with {text}", rule, COST)
    return None


def _after(change: Change, problem: Problem, name: str) -> Bounded:
    """Return the gradient of an input in a changed call; NaN if there is none."""
    assert problem.cotangent is not None
    exact = problem.solve_gradients()[name]
    call, cotangent = change(problem.oracle_call), problem.cotangent.astype(np.float64)
    x, gradient = call.meant[name], np.full(exact.output.shape, np.nan)
    with suppress(np.linalg.LinAlgError):  # No solution with such inputs.
        if x is not None and x.shape == gradient.shape:
            gradient = gradient_without(call, name, cotangent, "")
    return Bounded(gradient, exact.bound)


def _within_part(known: Sequence[InfluenceMap]) -> Factor | None:
    """Return a product by which one part of a gradient is wrong, if there is one."""
    for part, words in PARTS.items():
        alone = [_alone(part, one) for one in known]
        alone = [one for one in alone if one.exact.size]
        if sum(one.exact.size for one in alone) < TELLING:
            continue
        factor = product_of(alone, None)
        if factor is not None and factor.kind == "product":
            rule = partial(_with_part, part, factor)
            text = f"{factor.text} in {words}"
            return by_rule("in a part", text, rule, COST)
    return None


def _alone(part: str, one: InfluenceMap) -> InfluenceMap:
    """Return the entries of a map less what does not come back through a part."""
    index, rest = _index(one), _without(part, one.problem, _name(one))
    if not rest.output.any():  # it is no part
        return one.part(np.zeros(one.exact.shape, np.bool_))
    with np.errstate(all="ignore"):
        bound = np.asarray(one.bound + rest.bound[index])
        left = rest.output[index]
        alone = replace(
            one, measured=one.measured - left, exact=one.exact - left, bound=bound
        )
        return alone.part((abs(alone.exact) > bound) | (abs(alone.measured) > bound))


def _with_part(part: str, factor: Factor, one: InfluenceMap) -> Real:
    """Return the entries of a gradient, one part of which has a factor."""
    if not _is_whole(one):
        return np.full(one.exact.shape, np.nan)
    left = _without(part, one.problem, _name(one)).output[_index(one)]
    return np.asarray(left + factor.predict(replace(one, exact=one.exact - left)))


def _candidates(problem: Problem, name: str) -> Iterator[tuple[str, str, Gradient]]:
    """Yield the kind of a factor, its words, and the gradient that it stands for."""
    shape = problem.inputs[name].shape
    for other, x in problem.inputs.items():
        if other != name and x.shape == shape:
            yield "instead", f"the gradient of {other}", partial(_of_another, other)
    for words, gradient in other_sums(problem, name):
        yield "instead", words, gradient
    for part, words in PARTS.items():
        yield "partial", words, partial(_without, part)
    yield from _of_meanings(problem, name)
    for words, gradient in chain(_of_rows(problem), _with_products(problem, name)):
        yield "instead", words, gradient


def _of_rows(problem: Problem) -> Iterator[tuple[str, Gradient]]:
    """Yield gradients for which a row reads the memory at another time."""
    for words, operand, change in row_memories(problem.oracle_call):
        yield f"that with {words}, in {PARTS[operand]}", partial(_after, change)


def _of_meanings(problem: Problem, name: str) -> Iterator[tuple[str, str, Gradient]]:
    """Yield gradients that do not come back through all that is made of an input."""
    scope = problem.scope
    normalised = name in ("query", "key") and scope.contract.l2norm is not None
    if normalised:
        text = f"that with the norm of {name} as a constant"
        yield "instead", text, partial(_of_meaning, True)
        yield "instead", f"that of the normalised {name}", partial(_of_meaning, False)
    if form_of(scope.contract, scope.operator.input(name)) is not None:
        text = f"that of what {name} means, without the derivative of its form"
        yield "instead", text, partial(_of_meaning, False)


def _of_meaning(divided: bool, problem: Problem, name: str) -> Bounded:
    """Return the gradient of what an input means, perhaps divided by its norm."""
    assert problem.cotangent is not None
    call, exact = problem.oracle_call, problem.solve_gradients()[name]
    other = gradient_of_meaning(call, name, problem.cotangent.astype(np.float64))
    x = problem.inputs[name].astype(np.float64)
    other = other / call.norm(x) if divided else other
    with np.errstate(all="ignore"):
        larger = np.nan_to_num(abs(other / exact.output), nan=1.0, posinf=1.0)
    return Bounded(other, exact.bound * np.fmax(larger, 1))


def _with_products(problem: Problem, name: str) -> Iterator[tuple[str, Gradient]]:
    """Yield sums of a gradient with products of an input and its own, and their words.

    A value, which is in what is written alone, comes before a key, which is in what is
    read of the memory as well.
    """
    shape = problem.inputs[name].shape
    for other, x in sorted(problem.inputs.items(), key=lambda one: one[0] != "value"):
        channels = x.ndim - len(shape)
        if other != name and channels in (0, 1) and x.shape[: len(shape)] == shape:
            text = f"{other} times the gradient of {other}"
            text += ", summed over channels" if channels else ""
            for words, sign in WITH_PRODUCT.items():
                yield f"{words} {text}", partial(_with_product, other, sign)


def _of_another(other: str, problem: Problem, _: str) -> Bounded:
    return problem.solve_gradients()[other]


def _with_product(other: str, sign: int, problem: Problem, name: str) -> Bounded:
    """Return a gradient and the product of another input with its own.

    For a gate that is the gradient by the memory after a token's write, which the token
    has not decayed, in place of the memory before it.
    """
    every, x = problem.solve_gradients(), problem.inputs[other].astype(np.float64)
    channels = tuple(range(every[name].output.ndim, x.ndim))
    product = (x * every[other].output).sum(axis=channels)
    bound = (abs(x) * every[other].bound).sum(axis=channels)
    exact = every[name]
    return Bounded(exact.output + sign * product, exact.bound + bound)


def _without(part: str, problem: Problem, name: str) -> Bounded:
    # Asked for as a candidate, of each map, and again where a factor is to hold.
    return problem.recalled(
        ("gradient without", part, name), lambda: _less(part, problem, name)
    )


def _less(part: str, problem: Problem, name: str) -> Bounded:
    """Return the gradient of an input less what comes back through a part."""
    exact = problem.solve_gradients()[name]
    if (part, name) == ("erase", "log_decay"):
        return Bounded(exact.output - _through_erases(problem), exact.bound)
    assert problem.cotangent is not None
    cotangent = problem.cotangent.astype(np.float64)
    left = gradient_without(problem.oracle_call, name, cotangent, part)
    return Bounded(left, exact.bound)


def _through_erases(problem: Problem) -> Real:
    """Return the part of the gradient of log-decays through what erases read.

    An erase reads the decayed memory: the decay might be a factor of its key instead.
    """
    problem, shape = ungrouped(problem), problem.inputs["log_decay"].shape
    for name, x in problem.inputs.items():
        axes = problem.scope.operator.input(name).axes
        if axes[-2:] != "tk" or x.shape[:3] != shape[:3] or name == "log_decay":
            continue
        exact = problem.solve_gradients()[name].output
        share = x.astype(np.float64) * (exact - _without("erase", problem, name).output)
        if share.any():
            return np.asarray(share if len(shape) == share.ndim else share.sum(axis=-1))
    return np.zeros(shape)


def _name(one: InfluenceMap) -> str:
    """Return the input that a map has the gradient of; empty if there is none."""
    inputs = one.problem.inputs
    known = {NAMES[k].format(x): x for k in (INSIDE, DENOMINATOR) for x in inputs}
    return known.get(one.tensor, "")


def _is_whole(one: InfluenceMap) -> bool:
    """Return True if entries are of a gradient in one call of one sequence."""
    return bool(_name(one)) and not ELSEWHERE & {*one.coordinates}


def _holds(gradient: Gradient, one: InfluenceMap) -> bool:
    """Return True if entries are as predicted, and most not as they should be."""
    index, other = _index(one), gradient(one.problem, _name(one))
    output = other.output[index]
    with np.errstate(all="ignore"):
        rounding = SLACK * np.fmax(other.bound[index], tolerance(one, output))
        close = abs(one.measured - output) <= rounding
        changed = abs(output - one.exact) > rounding
    return bool(close.all() and 2 * changed.sum() > len(close))


def _predicted(gradient: Gradient, one: InfluenceMap) -> Real:
    """Return the entries of another gradient; NaN where there is none."""
    if not _is_whole(one):
        return np.full(one.exact.shape, np.nan)
    return np.asarray(gradient(one.problem, _name(one)).output[_index(one)])


def _index(one: InfluenceMap) -> tuple[Index, ...]:
    """Return the indices of entries in the gradient of their input."""
    problem, name, known = one.problem, _name(one), one.coordinates
    index = []
    for letter in problem.scope.operator.input(name).axes:
        if letter in "ts":
            at = known["row" if name == "query" else "source"]
            each = per_token(problem) if letter == "s" else 1
            index.append(at if each == 1 else at * each + known["micro-step"])
        else:
            place = {"b": "batch", "g": "head", "h": "head"}.get(letter)
            index.append(known[place or AXES[letter]])
    return tuple(index)
