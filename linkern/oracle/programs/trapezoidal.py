"""Mamba-3: two writes for each token, of the one before and of itself, after a turn."""

from math import pi

import numpy as np
from numpy.typing import NDArray

from linkern.oracle.angles import hyperbolic_tangent, reduced, rotated, turned
from linkern.oracle.calls import Call, joined, picked, placed, sliced
from linkern.oracle.scan import scanned
from linkern.oracle.tape import Node, Tape

__all__ = ["mamba3"]

Real = NDArray[np.float64]


def mamba3(call: Call) -> tuple[Node, tuple[Node, ...]]:
    """Return ``S = a (S + d k' v'^T) + c k v^T``, where a stroke is the token before.

    A token is two rows: the first writes for the token before, the second decays and
    writes for itself.
    """
    tape, value = call.tape, call["value"]
    memory, carried = call.state
    pairs, keys = call["angle"].shape[-1], call["key"].shape[-1]
    start, key_before, value_before = (
        sliced(tape, carried, first, last)
        for first, last in (
            (0, pairs),
            (pairs, pairs + keys),
            (pairs + keys, carried.shape[-1]),
        )
    )
    step, share = _gate(call, "dt"), _gate(call, "trapezoid")
    angles, end = turned(tape, _turns(tape, call["angle"], step), start)
    query = tape.product(call.shared("query"), coefficient=call.scale)
    query, key = (rotated(tape, x, angles) for x in (query, call.shared("key")))
    minus = tape.contract("...,...->...", share, tape.constant(-1.0), prepared=True)
    rest = tape.add(tape.constant(1.0), minus)
    decay = call.per_channel("log_decay")
    reads, memory = scanned(
        tape,
        query=placed(tape, query, 1, 2),
        key=_both(tape, _before(tape, key_before, key), key),
        value=_both(
            tape,
            _times(tape, _times(tape, rest, step), _before(tape, value_before, value)),
            _times(tape, _times(tape, share, step), value),
        ),
        state=memory,
        log_decay=None if decay is None else placed(tape, decay, 1, 2),
        rows_per_token=2,
    )
    if not value.shape[-2]:
        return value, call.state
    after = joined(tape, reduced(tape, end), _last(tape, key))
    after = joined(tape, after, _last(tape, value))
    return picked(tape, reads, 1, 2), (memory, after)


def _gate(call: Call, name: str) -> Node:
    """Return a gate of one number for each token, 1 where there is none."""
    x = call.per_channel(name)
    return (
        call.tape.constant(np.ones((*call["value"].shape[:-1], 1))) if x is None else x
    )


def _turns(tape: Tape, angle: Node, step: Node) -> Node:
    speed = tape.contract(
        "...,...->...", hyperbolic_tangent(tape, angle), tape.constant(pi)
    )
    return _times(tape, speed, step)


def _times(tape: Tape, x: Node, y: Node) -> Node:
    return tape.contract("...,...->...", x, y)


def _both(tape: Tape, first: Node, second: Node) -> Node:
    """Return two rows for each token."""
    return tape.overlay(placed(tape, first, 0, 2), placed(tape, second, 1, 2))


def _before(tape: Tape, first: Node, rows: Node) -> Node:
    """Return the row of the token before for each token."""
    length = rows.shape[-2]

    def later(y: Real) -> Real:
        return np.concatenate([np.zeros_like(y[..., :1, :]), y[..., :-1, :]], axis=-2)

    def earlier(y: Real) -> Real:
        return np.concatenate([y[..., 1:, :], np.zeros_like(y[..., :1, :])], axis=-2)

    def top(y: Real) -> Real:
        rest = np.zeros((*y.shape[:-1], length - 1, y.shape[-1]))
        return np.concatenate([y[..., None, :], rest], axis=-2)

    if not length:
        return rows
    return tape.overlay(
        tape.linear(first, top, lambda y: y[..., 0, :]),
        tape.linear(rows, later, earlier),
    )


def _last(tape: Tape, rows: Node) -> Node:
    def back(y: Real) -> Real:
        whole = np.zeros(rows.shape)
        whole[..., -1, :] = y
        return whole

    return tape.linear(rows, lambda y: y[..., -1, :], back)
