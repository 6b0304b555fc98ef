"""The delta rule with momentum: a pair of memories, the first of which follows."""

import numpy as np
from numpy.typing import NDArray

from linkern.oracle.calls import Call, joined
from linkern.oracle.scan import scanned
from linkern.oracle.tape import Node, Tape

__all__ = ["momentum_delta_rule"]

Real = NDArray[np.float64]


def momentum_delta_rule(call: Call) -> tuple[Node, tuple[Node, ...]]:
    """Return ``M = mu M + eta k (v - R^T k)^T``, ``S = R + beta M``, ``R = e^g S``.

    Keys read and erase in the first half of the channels, and write into the second.
    """
    tape, key = call.tape, call.shared("key")
    query = tape.product(call.shared("query"), coefficient=call.scale)
    gates = (
        _gate(call, name, missing)
        for name, missing in (
            ("log_decay", 0.0),
            ("momentum_log_decay", 0.0),
            ("beta", 1.0),
        )
    )
    log_decay, momentum_log_decay, beta = gates
    output, memory = scanned(
        tape,
        query=_half(tape, query, 0),
        key=_half(tape, tape.product(key, call.per_channel("momentum_beta")), 1),
        value=call["value"],
        state=call.state[0],
        log_decay=joined(tape, log_decay, momentum_log_decay),
        erase=_half(tape, key, 0),
        follow=beta,
        depth=key.shape[-1],
        exact=call.options.exact,
    )
    return output, (memory,)


def _gate(call: Call, name: str, missing: float) -> Node:
    """Return a gate of one number for each token, a constant where there is none."""
    x = call.per_channel(name)
    shape = (*call["value"].shape[:-1], 1)
    return call.tape.constant(np.full(shape, missing)) if x is None else x


def _half(tape: Tape, x: Node, half: int) -> Node:
    """Return rows of one half of the channels, zeros in the other."""
    size = x.shape[-1]
    widths = (half * size, (1 - half) * size)

    def spread(y: Real) -> Real:
        return np.pad(y, [(0, 0)] * (y.ndim - 1) + [widths])

    def back(y: Real) -> Real:
        return y[..., half * size : (half + 1) * size]

    return tape.linear(x, spread, back)
