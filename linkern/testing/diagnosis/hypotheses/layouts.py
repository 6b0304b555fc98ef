"""Inputs read, and outputs written, in another order than they lie in."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import Bounded
from linkern.testing.diagnosis.hypotheses.epilogue import (
    Finish,
    Move,
    epilogue,
    moved,
)
from linkern.testing.diagnosis.hypotheses.evidence import Evidence
from linkern.testing.diagnosis.hypotheses.hypothesis import (
    Deviation,
    causal,
    hypothesis,
    takes,
    then,
)
from linkern.testing.diagnosis.hypotheses.indexing import ORDERS, reversed_rows
from linkern.testing.diagnosis.hypotheses.pairs import Real
from linkern.testing.problems.problem import Problem
from linkern.testing.target.memory_layout import place
from linkern.testing.target.protocol import from_layout, to_layout

Rearrange = Callable[[Problem], Mapping[str, NDArray[Any]]]


def _rearranged(
    name: str, phrase: str, rearrange: Rearrange, finish: Finish | None = None
) -> Deviation:
    """Return the operator on rearranged inputs, with its output moved back."""

    def predict(problem: Problem) -> Bounded:
        return problem.with_inputs(**rearrange(problem)).solve()

    return Deviation(name, phrase, predict if finish is None else then(predict, finish))


@hypothesis("outputs", 50, takes("query", "key"))
def swapped(evidence: Evidence) -> Iterator[Deviation]:
    """Yield query and key swapped."""
    del evidence
    yield _rearranged(
        "query_key_swapped",
        "query and key swapped",
        lambda problem: {"query": problem.key, "key": problem.query},
    )


@hypothesis("outputs", 51)
def arrangements(evidence: Evidence) -> Iterator[Deviation]:
    """Yield swapped axes of inputs and outputs."""
    if causal(evidence.scope):
        backwards = _all(reversed_rows)
        reverse = moved(reversed_rows)
        phrase = "time running backwards"
        yield _rearranged("time_reversed", phrase, backwards, reverse)
    axes = "heads and time swapped"
    for how, move, back in (
        ("", _across, _across),
        (" read in memory", _reread, _rewritten),
    ):
        phrase = f"inputs and output{how} with {axes}"
        swapped = _rearranged("layout_swapped", phrase, _all(move), moved(back))
        other = _OTHER_LAYOUT.get(evidence.scope.contract.layout)
        declaration = (f"layout={other}",) if other and move is _across else ()
        yield replace(swapped, declaration=declaration)
    for name, phrase, move in (
        ("output_transposed", "an output whose last two axes are swapped", _transposed),
        ("output_layout_swapped", f"an output with {axes}", _across),
        ("output_layout_swapped", f"an output written with {axes}", _rewritten),
    ):
        yield epilogue(name, phrase, moved(move))


@hypothesis("outputs", 52, takes("query", "key"))
def mixed_heads(evidence: Evidence) -> Iterator[Deviation]:
    """Yield queries that meet keys and values of other heads or batch entries."""
    del evidence
    for phrase, order in _MIXED.items():
        of_queries = partial(_each, ("query",), order)
        yield _rearranged("queries_mixed", f"the queries of {phrase}", of_queries)
        of_keys = partial(_each, ("key", "value"), order)
        yield _rearranged("keys_mixed", f"the keys and values of {phrase}", of_keys)


_OTHER_LAYOUT = {"bhtd": "bthd", "bthd": "bhtd"}
_MIXED: dict[str, Move] = {
    phrase + (" for all" if "first" in phrase else ""): order
    for phrase, order in ORDERS.items()
} | {
    "heads and batch entries in the other order": lambda x: np.swapaxes(
        x.reshape((x.shape[1], x.shape[0], *x.shape[2:])), 0, 1
    ),
}


def _each(
    names: tuple[str, ...], move: Move, problem: Problem
) -> dict[str, NDArray[Any]]:
    return {name: np.asarray(move(problem.inputs[name])) for name in names}


def _all(move: Move) -> Rearrange:
    """Return what moves all inputs that have tokens."""

    def rearrange(problem: Problem) -> dict[str, NDArray[Any]]:
        operator, names = problem.scope.operator, problem.inputs
        moving = tuple(n for n in names if operator.input(n).token_axis is not None)
        return _each(moving, move, problem)

    return rearrange


def _transposed(x: Real) -> Real:
    return np.swapaxes(x, -1, -2)


def _across(x: Real) -> Real:
    return np.swapaxes(x, 1, 2)


def _reread(x: Real) -> Real:
    """Take the memory of ``(B, H, T, ...)`` for that of ``(B, T, H, ...)``."""
    batch, heads, length, *rest = x.shape
    return np.swapaxes(x.reshape(batch, length, heads, *rest), 1, 2)


def _rewritten(x: Real) -> Real:
    """Write ``(B, T, H, ...)`` where ``(B, H, T, ...)`` is expected."""
    return np.swapaxes(x, 1, 2).reshape(x.shape)


@hypothesis("placed", 10)
def strides(evidence: Evidence) -> Iterator[Deviation]:
    """Yield inputs that are read as if they were contiguous."""
    names, layout = evidence.scope.operator.names, evidence.scope.contract.layout
    for group in (names, *((name,) for name in names)):
        yield Deviation(
            "assumes_contiguous",
            f"{' and '.join(group)} read as if contiguous",
            partial(_reading, names=group, layout=layout),
            allow_unknown="anywhere",
            declaration=("strides=contiguous",),
        )


def _reading(problem: Problem, names: tuple[str, ...], layout: str) -> Bounded:
    """Return what comes of inputs read as if contiguous; open where they hold NaN."""
    style = problem.knobs["memory"]
    read = {n: _as_if_contiguous(problem.inputs[n], style, layout) for n in names}
    result = problem.with_inputs(**read).solve()
    if all(np.isfinite(x.astype(np.float64)).all() for x in read.values()):
        return result
    return Bounded(result.output, np.full_like(result.output, np.inf))


def _as_if_contiguous(x: NDArray[Any], style: str, layout: str) -> NDArray[Any]:
    """Return what memory holds from the first entry of an array on."""
    placed = place(to_layout(x, layout), style)
    view, flat = placed.view, placed.base.ravel(order="K")
    address, first = (y.__array_interface__["data"][0] for y in (view, placed.base))
    start = (address - first) // x.itemsize
    if start + x.size > flat.size:
        return x
    return from_layout(flat[start : start + x.size].reshape(view.shape), layout)
