"""Mamba-3: two writes for each token, of the one before and of itself, after a turn."""

from functools import reduce
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

    Of R keys and queries a token is ``3 R - 1`` rows: R that write for the token
    before, R of which the first decays and all write for the token itself, and the last
    of these and R - 1 more that read.
    """
    tape, value = call.tape, call["value"]
    memory, carried = call.state
    size, pairs, keys = memory.shape[-2], call["angle"].shape[-1], call["key"].shape[-1]
    start, keys_before, value_before = (
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
    minus = tape.contract("...,...->...", share, tape.constant(-1.0), prepared=True)
    rest = tape.add(tape.constant(1.0), minus)
    late = tape.part("write for the token before", _times(tape, rest, step))
    now = tape.part("write for the token", _times(tape, share, step))
    earlier = _times(tape, late, _before(tape, value_before, value))
    itself = _times(tape, now, value)
    rank = keys // size
    rows = 3 * rank - 1
    queries, written, values, rotated_keys = [], [], [], []
    for r in range(rank):
        one = (r * size, (r + 1) * size)
        turned_key = rotated(tape, sliced(tape, call.shared("key"), *one), angles)
        turned_query = rotated(tape, sliced(tape, query, *one), angles)
        before = _before(tape, sliced(tape, keys_before, *one), turned_key)
        rotated_keys.append(turned_key)
        queries.append(placed(tape, turned_query, 2 * rank - 1 + r, rows))
        for slot, key, x in ((r, before, earlier), (rank + r, turned_key, itself)):
            written.append(placed(tape, key, slot, rows))
            values.append(placed(tape, _mixed(call, x, r), slot, rows))
    decay = call.per_channel("log_decay")
    reads, memory = scanned(
        tape,
        query=reduce(tape.overlay, queries),
        key=reduce(tape.overlay, written),
        value=reduce(tape.overlay, values),
        state=memory,
        log_decay=None if decay is None else placed(tape, decay, rank, rows),
        rows_per_token=rows,
    )
    if not value.shape[-2]:
        return value, call.state
    after = reduced(tape, end)
    for x in (*rotated_keys, value):
        after = joined(tape, after, _last(tape, x))
    return _outputs(call, reads, rank), (memory, after)


def _mixed(call: Call, x: Node, r: int) -> Node:
    """Return the values of one key of each token."""
    mix = call.get("value_mix")
    if mix is None:
        return x
    return _times(call.tape, picked(call.tape, mix, r, mix.shape[-2]), x)


def _outputs(call: Call, reads: Node, rank: int) -> Node:
    """Return the last rows of each token, as one sum of all."""
    tape, mix = call.tape, call.get("output_mix")
    rows = 3 * rank - 1
    if mix is None:
        return picked(tape, reads, rows - 1, rows)
    *lead, length, size = reads.shape
    first = 2 * rank - 1

    def back(y: Real) -> Real:
        none = np.zeros((*y.shape[:-2], first, size))
        return np.concatenate([none, y], axis=-2).reshape(reads.shape)

    split = (*lead, length // rows, rows, size)
    last = tape.linear(reads, lambda y: y.reshape(split)[..., first:, :], back)
    return tape.contract("...trv,...rv->...tv", last, mix)


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
