"""Gradients that are sums of others: over heads, batch entries, or some rows alone."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from linkern.oracle import Bounded
from linkern.testing.diagnosis.alternatives.changes import Gradient
from linkern.testing.diagnosis.sizes import CHUNKS
from linkern.testing.influence.maps import Index, Real
from linkern.testing.problems.problem import Problem

__all__ = ["other_sums", "ungrouped"]

# Returns some of the rows of a call by its length.
Rows = Callable[[int], slice]
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


def other_sums(problem: Problem, name: str) -> Iterator[tuple[str, Gradient]]:
    """Yield gradients of an input that are sums of other terms, and their words.

    Parameters
    ----------
    problem : Problem
        A problem with a cotangent.
    name : str
        The input that gradients are of.
    """
    shape, axes = problem.inputs[name].shape, problem.scope.operator.input(name).axes
    for words, letters in OVER.items():
        axis = next((axes.index(a) for a in letters if a in axes), None)
        if axis is not None and shape[axis] > 1:
            yield f"its sum over {words}", partial(_over, np.sum, axis)
            yield f"its mean over {words}", partial(_over, np.mean, axis)
    if problem.shape.groups > 1 and "h" in axes:
        for words, chosen in GROUPS.items():
            yield words, partial(_of_heads, chosen, axes.index("h"))
    if "b" not in axes and problem.shape.batch > 1:
        for words, entry in ENTRIES.items():
            text = f"that of the {words} batch entry"
            yield text, partial(_of_entry, entry)
    if not {*"ts"} & {*axes}:
        for words, rows in _some_rows(problem.length):
            yield f"that of the {words} alone", partial(_of_rows_alone, rows)


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
    every = ungrouped(problem).solve_gradients()[name]
    heads = chosen(sizes["h"], sizes["g"])
    both = (np.take(x, heads, axis).sum(axis + 1) for x in (every.output, every.bound))
    return Bounded(*both)


def _some_rows(length: int) -> Iterator[tuple[str, Rows]]:
    """Yield rows that may be left of a sum over chunks, and their words."""
    for chunk in CHUNKS:
        if chunk < length:
            yield f"first {chunk} rows", partial(_first_rows, chunk)
            yield f"last chunk of {chunk} rows", partial(_last_chunk, chunk)
        if chunk < length and length % chunk:
            yield f"whole chunks of {chunk} rows", partial(_whole_chunks, chunk)


def _first_rows(chunk: int, _: int) -> slice:
    return slice(chunk)


def _last_chunk(chunk: int, length: int) -> slice:
    return slice(length - (length % chunk or chunk), None)


def _whole_chunks(chunk: int, length: int) -> slice:
    return slice(length - length % chunk)


def _of_entry(entry: int, problem: Problem, name: str) -> Bounded:
    """Return the gradient that one batch entry of the cotangent makes."""
    return _of_part(np.s_[entry], problem, name)


def _of_rows_alone(rows: Rows, problem: Problem, name: str) -> Bounded:
    """Return the gradient that some rows of the cotangent make."""
    return _of_part(np.s_[:, :, rows(problem.length)], problem, name)


def _of_part(kept: Any, problem: Problem, name: str) -> Bounded:
    """Return the gradient that a part of the cotangent makes."""
    assert problem.cotangent is not None
    cotangent = np.zeros_like(problem.cotangent)
    cotangent[kept] = problem.cotangent[kept]
    return replace(problem, cotangent=cotangent).solve_gradients()[name]


def ungrouped(problem: Problem) -> Problem:
    """Return the same problem with a head of each input for every head of values."""
    groups, input_of = problem.shape.groups, problem.scope.operator.input
    repeated = {
        name: np.repeat(x, groups, axis=input_of(name).axes.index("h"))
        for name, x in problem.inputs.items()
        if groups > 1 and "h" in input_of(name).axes
    }
    return problem.with_inputs(**repeated) if repeated else problem
