"""The matrix memory of xLSTM, over the sum of its weights."""

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import functions
from linkern.oracle.calls import Call, column, joined, sliced
from linkern.oracle.quotients import floored
from linkern.oracle.scan import scanned
from linkern.oracle.tape import Node, Tape

__all__ = ["mlstm"]

Real = NDArray[np.float64]


def _after(tape: Tape, before: Node, end: Node) -> Node:
    """Return ``z_t`` of each token, from ``z_{t-1}`` and the last one."""

    def later(y: Real) -> Real:
        return np.concatenate([y[..., 1:, :], np.zeros_like(y[..., :1, :])], axis=-2)

    def earlier(y: Real) -> Real:
        return np.concatenate([np.zeros_like(y[..., :1, :]), y[..., :-1, :]], axis=-2)

    def last(y: Real) -> Real:
        return np.concatenate(
            [np.zeros((*y.shape[:-1], length - 1, 1)), y[..., None, :]], -2
        )

    length = before.shape[-2]
    return tape.overlay(
        tape.linear(before, later, earlier),
        tape.linear(end, last, lambda y: y[..., -1, :]),
    )


def mlstm(call: Call) -> tuple[Node, tuple[Node, ...]]:
    """Return ``q^T C / max(|q^T n|, 1)``, ``C`` and ``n`` sums of gated writes."""
    tape, value = call.tape, call["value"]
    nothing = tape.constant(np.zeros((*value.shape[:-1], 1)))
    decay, logit = (
        column(tape, call[name]) if name in call.inputs else nothing
        for name in ("log_decay", "input_gate")
    )
    keep, share, before, end = functions.log_sums(tape, decay, logit, call.state[1])
    ones = tape.constant(np.ones((*value.shape[:-1], 1)))
    reads, memory = scanned(
        tape,
        query=tape.product(call.shared("query"), coefficient=call.scale),
        key=tape.contract("...,...->...", share, call.shared("key")),
        value=joined(tape, value, ones),
        state=call.state[0],
        log_decay=keep,
    )
    if not value.shape[-2]:
        return value, (memory, end)
    size = value.shape[-1]
    above, below = (
        tape.part(name, sliced(tape, reads, *channels))
        for name, channels in (
            ("numerator", (0, size)),
            ("denominator", (size, size + 1)),
        )
    )
    weight, constant = _after(tape, before, end), call.options.constant
    output = floored(tape, above, below, weight, constant=constant)
    return output, (memory, end)
