"""Gradients in place of the right ones: without a part, over heads, of another input.

A key that is written and erased along has two ways back, of which a backward pass may
lose one, or a factor of one. Each is the oracle's gradient without what comes back to
one operand of an operation; no product of quantities is a sum of ways through it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from linkern.oracle import Bounded
from linkern.testing.diagnosis.alternatives.changes import Change
from linkern.testing.diagnosis.alternatives.other_states import of_other_states
from linkern.testing.diagnosis.alternatives.parts import other_parts
from linkern.testing.diagnosis.alternatives.replacements import replacements
from linkern.testing.diagnosis.alternatives.row_memories import row_memories
from linkern.testing.diagnosis.factors.factor import Factor, by_rule, tolerance
from linkern.testing.diagnosis.factors.products import product_of
from linkern.testing.diagnosis.sizes import CHUNKS
from linkern.testing.influence.gradient_places import DENOMINATOR, INSIDE, NAMES
from linkern.testing.influence.maps import AXES, Index, InfluenceMap, Real
from linkern.testing.influence.scenes import per_token
from linkern.testing.problems.expected import gradient_of_meaning, gradient_without
from linkern.testing.problems.forms import form_of
from linkern.testing.problems.problem import Problem

__all__ = ["other_gradient"]

# Returns a gradient of an input in a problem, and how far rounding may move it.
Gradient = Callable[[Problem, str], Bounded]

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
# Axes over which a gradient may be added up or averaged.
OVER = {"heads": "gh", "the batch": "b"}
# Heads of values whose gradients may be added up, or left, for those that share a row,
# by the numbers of heads of queries and of values.
GROUPS: dict[str, Callable[[int, int], Index]] = {
    "its sum over heads h of values with the same h % H": (
        lambda shared, every: np.arange(every).reshape(-1, shared).T
    ),
    "that of the first head of every group": (
        lambda shared, every: np.arange(every).reshape(shared, -1)[:, :1]
    ),
    "that of the last head of every group": (
        lambda shared, every: np.arange(every).reshape(shared, -1)[:, -1:]
    ),
}
# Batch entries that may be left of a sum over the batch.
ENTRIES = {"first": 0, "last": -1}
# What a gradient may be with the product of another input and its gradient.
WITH_PRODUCT = {"its sum with": 1, "it less": -1}
# Entries that tell a map, multiple of rounding that entries may be off, bits of words.
TELLING, SLACK, COST = 24, 4.0, 10.0
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
    known = [one.part(one.wrong) for one in maps if one.wrong.any() and _is_whole(one)]
    known.sort(key=lambda one: one.exact.size)
    if sum(one.exact.size for one in known) < TELLING:
        return None
    for kind, words, gradient in _candidates(known[0].problem, _name(known[0])):
        if all(_holds(gradient, one) for one in known):
            rule = partial(_predicted, gradient)
            return by_rule(kind, words, rule, COST)
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
    shape, axes = problem.inputs[name].shape, problem.scope.operator.input(name).axes
    for other, x in problem.inputs.items():
        if other != name and x.shape == shape:
            yield "instead", f"the gradient of {other}", partial(_of_another, other)
    for words, letters in OVER.items():
        axis = next((axes.index(a) for a in letters if a in axes), None)
        if axis is not None and shape[axis] > 1:
            yield "instead", f"its sum over {words}", partial(_over, np.sum, axis)
            yield "instead", f"its mean over {words}", partial(_over, np.mean, axis)
    if problem.shape.groups > 1 and "h" in axes:
        for words, chosen in GROUPS.items():
            yield "instead", words, partial(_of_heads, chosen, axes.index("h"))
    if "b" not in axes and problem.shape.batch > 1:
        for words, entry in ENTRIES.items():
            text = f"that of the {words} batch entry"
            yield "instead", text, partial(_of_part, np.s_[entry])
    if not {*"ts"} & {*axes}:
        for words, rows in _some_rows(problem.length):
            text = f"that of the {words} alone"
            yield "instead", text, partial(_of_part, np.s_[:, :, rows])
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


def _over(
    combine: Callable[..., Real], axis: int, problem: Problem, name: str
) -> Bounded:
    exact = problem.solve_gradients()[name]
    both = (combine(x, axis=axis, keepdims=True) for x in (exact.output, exact.bound))
    return Bounded(*(np.broadcast_to(x, exact.output.shape) for x in both))


def _of_heads(
    chosen: Callable[[int, int], Index], axis: int, problem: Problem, name: str
) -> Bounded:
    """Return gradients of heads of values, those of other heads for each of queries."""
    sizes = problem.sizes
    every = _ungrouped(problem).solve_gradients()[name]
    heads = chosen(sizes["h"], sizes["g"])
    both = (np.take(x, heads, axis).sum(axis + 1) for x in (every.output, every.bound))
    return Bounded(*both)


def _some_rows(length: int) -> Iterator[tuple[str, slice]]:
    """Yield rows that may be left of a sum over chunks, and their words."""
    for chunk in CHUNKS:
        tail = length % chunk
        if chunk < length:
            yield f"first {chunk} rows", slice(chunk)
            yield f"last chunk of {chunk} rows", slice(length - (tail or chunk), None)
        if chunk < length and tail:
            yield f"whole chunks of {chunk} rows", slice(length - tail)


def _of_part(kept: Any, problem: Problem, name: str) -> Bounded:
    """Return the gradient that a part of the cotangent makes."""
    assert problem.cotangent is not None
    cotangent = np.zeros_like(problem.cotangent)
    cotangent[kept] = problem.cotangent[kept]
    return replace(problem, cotangent=cotangent).solve_gradients()[name]


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
    problem, shape = _ungrouped(problem), problem.inputs["log_decay"].shape
    for name, x in problem.inputs.items():
        axes = problem.scope.operator.input(name).axes
        if axes[-2:] != "tk" or x.shape[:3] != shape[:3] or name == "log_decay":
            continue
        exact = problem.solve_gradients()[name].output
        share = x.astype(np.float64) * (exact - _without("erase", problem, name).output)
        if share.any():
            return np.asarray(share if len(shape) == share.ndim else share.sum(axis=-1))
    return np.zeros(shape)


def _ungrouped(problem: Problem) -> Problem:
    """Return the same problem with a head of each input for every head of values."""
    groups, input_of = problem.shape.groups, problem.scope.operator.input
    repeated = {
        name: np.repeat(x, groups, axis=input_of(name).axes.index("h"))
        for name, x in problem.inputs.items()
        if groups > 1 and "h" in input_of(name).axes
    }
    return problem.with_inputs(**repeated) if repeated else problem


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
