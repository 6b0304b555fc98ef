"""State space models: a memory in which each entry has a decay of its own."""

import numpy as np
from numpy.typing import NDArray

from linkern.oracle.calls import Call, as_row
from linkern.oracle.scan import scanned
from linkern.oracle.tape import Node, Tape

__all__ = ["selective_scan"]

Real = NDArray[np.float64]


def _by_channel(tape: Tape, x: Node) -> Node:
    """Return rows of channels ``(..., T, V)`` as columns of each ``(..., V, T, 1)``."""
    return tape.linear(x, _apart, _together)


def _apart(y: Real) -> Real:
    return np.swapaxes(y, -1, -2)[..., None]


def _together(y: Real) -> Real:
    return np.swapaxes(y[..., 0], -1, -2)


def _for_all_channels(tape: Tape, x: Node) -> Node:
    return tape.linear(x, lambda y: y[..., None, :, :], lambda y: y[..., 0, :, :])


def selective_scan(call: Call) -> tuple[Node, tuple[Node, ...]]:
    """Return ``S = e^(dt A) * S + k (dt x)^T``, and ``D x`` added to the read."""
    tape, value = call.tape, call["value"]
    steps = _by_channel(tape, call["dt"])
    rate = call.get("log_decay_rate")
    query = tape.product(call.shared("query"), coefficient=call.scale)
    reads, memory = scanned(
        tape,
        query=_for_all_channels(tape, query),
        key=_for_all_channels(tape, call.shared("key")),
        value=tape.product(steps, _by_channel(tape, value)),
        state=_by_channel(tape, call.state[0]),
        log_decay=None if rate is None else tape.product(steps, as_row(tape, rate)),
    )
    output = tape.linear(reads, _together, _apart)
    if "skip" in call.inputs:
        direct = tape.contract("...,...->...", value, as_row(tape, call["skip"]))
        output = tape.add(output, direct)
    return output, (tape.linear(memory, _together, _apart),)
