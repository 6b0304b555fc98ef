"""Inputs read, and outputs written, in another order than they lie in."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import Bounded
from linkern.testing.diagnosis.hypotheses.evidence import Evidence
from linkern.testing.diagnosis.hypotheses.finishes import Move, moved
from linkern.testing.diagnosis.hypotheses.pairs import Real
from linkern.testing.diagnosis.hypotheses.variant import (
    Deviation,
    Inputs,
    variant,
)
from linkern.testing.problems.problem import Problem
from linkern.testing.spec.operators import INPUT_NAMES
from linkern.testing.target.memory_layout import place
from linkern.testing.target.protocol import from_layout, to_layout

__all__ = ["arrangements", "strides"]


def arrangements(evidence: Evidence) -> Iterator[Deviation]:
    """Yield swapped inputs, swapped axes, and heads that meet others."""
    yield variant(
        "query_key_swapped",
        "query and key swapped",
        arrange=lambda given: (given[1], given[0], given[2]),
    )
    if evidence.scope.operator.causal:
        parts = _around(_backwards, _backwards)
        yield variant("time_reversed", "time running backwards", **parts)
    swapped = "heads and time swapped"
    for how, move, back in (
        ("", _across, _across),
        (" read in memory", _reread, _rewritten),
    ):
        phrase = f"inputs and output{how} with {swapped}"
        yield variant("layout_swapped", phrase, **_around(move, back))
    for name, phrase, move in (
        ("output_transposed", "an output whose last two axes are swapped", _transposed),
        ("output_layout_swapped", f"an output with {swapped}", _across),
        ("output_layout_swapped", f"an output written with {swapped}", _rewritten),
    ):
        yield variant(name, phrase, finish=moved(move))
    for phrase, order in _ORDERS.items():
        of_queries, of_keys = _mixed(order)
        yield variant("queries_mixed", f"the queries of {phrase}", arrange=of_queries)
        yield variant("keys_mixed", f"the keys and values of {phrase}", arrange=of_keys)


def _around(move: Move, back: Move) -> dict[str, Callable[..., Any]]:
    """Return the parts that move the inputs, and move the output back."""
    return {
        "arrange": lambda given: (move(given[0]), move(given[1]), move(given[2])),
        "finish": moved(back),
    }


def _backwards(x: Real) -> Real:
    return x[:, :, ::-1]


def _transposed(x: Real) -> Real:
    return np.swapaxes(x, -1, -2)


def _across(x: Real) -> Real:
    return np.swapaxes(x, 1, 2)


def _reread(x: Real) -> Real:
    """Take the memory of ``(B, H, T, D)`` for that of ``(B, T, H, D)``."""
    batch, heads, length, dim = x.shape
    return np.swapaxes(x.reshape(batch, length, heads, dim), 1, 2)


def _rewritten(x: Real) -> Real:
    """Write ``(B, T, H, D)`` where ``(B, H, T, D)`` is expected."""
    return np.swapaxes(x, 1, 2).reshape(x.shape)


def _mixed(
    order: Move,
) -> tuple[Callable[[Inputs], Inputs], Callable[[Inputs], Inputs]]:
    """Return what reorders the heads of the queries, and those of keys and values."""
    return (
        lambda given: (order(given[0]), given[1], given[2]),
        lambda given: (given[0], order(given[1]), order(given[2])),
    )


_ORDERS: dict[str, Move] = {
    "the first head for all": lambda x: np.broadcast_to(x[:, :1], x.shape),
    "the next head": lambda x: np.roll(x, -1, axis=1),
    "the head before": lambda x: np.roll(x, 1, axis=1),
    "the first batch entry for all": lambda x: np.broadcast_to(x[:1], x.shape),
    "another batch entry": lambda x: np.roll(x, 1, axis=0),
    "heads and batch entries in the other order": lambda x: np.swapaxes(
        x.reshape((x.shape[1], x.shape[0], *x.shape[2:])), 0, 1
    ),
}


def strides(evidence: Evidence) -> Iterator[Deviation]:
    """Yield inputs that are read as if they were contiguous."""
    layout = evidence.scope.contract.layout
    groups: list[tuple[str, ...]] = [INPUT_NAMES, *((name,) for name in INPUT_NAMES)]
    for names in groups:
        yield Deviation(
            "assumes_contiguous",
            f"{' and '.join(names)} read as if contiguous",
            partial(_reading, names=names, layout=layout),
            silent="anywhere",
        )


def _reading(problem: Problem, names: tuple[str, ...], layout: str) -> Bounded:
    """Return what comes of inputs read as if contiguous; open where they hold NaN."""
    style = problem.knobs["memory"]
    read = {n: _as_if_contiguous(getattr(problem, n), style, layout) for n in names}
    found = problem.with_inputs(**read).solve()
    if all(np.isfinite(x.astype(np.float64)).all() for x in read.values()):
        return found
    return Bounded(found.output, np.full_like(found.output, np.inf))


def _as_if_contiguous(x: NDArray[Any], style: str, layout: str) -> NDArray[Any]:
    """Return what memory holds from the first entry of an array on."""
    placed = place(to_layout(x, layout), style)
    view, flat = placed.view, placed.base.ravel(order="K")
    address, first = (y.__array_interface__["data"][0] for y in (view, placed.base))
    start = (address - first) // x.itemsize
    if start + x.size > flat.size:
        return x
    return from_layout(flat[start : start + x.size].reshape(view.shape), layout)
