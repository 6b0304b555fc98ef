"""Log-linear attention: a memory for each scale of distance."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from linkern.oracle.calls import Call, sliced
from linkern.oracle.programs.additive import at_once
from linkern.oracle.scan import scanned
from linkern.oracle.tape import Node, Tape

__all__ = ["log_linear"]

Real = NDArray[np.float64]


def log_linear(call: Call) -> tuple[Node, tuple[Node, ...]]:
    """One memory for each level: begun, written and read as the bits of time say."""
    tape, value = call.tape, call["value"]
    key = call.shared("key")
    query = tape.product(call.shared("query"), coefficient=call.scale)
    levels = call["level_scales"].shape[-1]
    length = value.shape[-2]
    time = call.position + np.arange(length)
    log_decay = call.per_channel("log_decay")
    scale = sliced(tape, call["level_scales"], 0, 1)
    now = at_once(call, query, key, log_decay)
    output = tape.contract("...,...->...", now, scale)
    memories = [_level(tape, call.state[0], 0, lambda m: 0.0 * m)]
    for level in range(1, levels):
        half = 2 ** (level - 1)
        reading = (time & half) != 0
        masked = [
            tape.product(x, tape.constant(on[:, None].astype(np.float64)))
            for x, on in ((query, reading), (key, ~reading))
        ]
        reads, memory = scanned(
            tape,
            query=masked[0],
            key=masked[1],
            value=value,
            state=_begun(tape, call.state[0], level, call.position),
            log_decay=log_decay,
            fresh=(time % (2 * half) == 0) & (np.arange(length) > 0),
            memory=f"level {level}",
        )
        scale = sliced(tape, call["level_scales"], level, level + 1)
        output = tape.add(output, tape.contract("...,...->...", reads, scale))
        read_next = float(((call.position + length) & half) != 0)
        memories.append(tape.product(memory, coefficient=read_next))
    return output, (_stacked(tape, memories),)


def _level(tape: Tape, state: Node, level: int, change: Callable[[Real], Real]) -> Node:
    def back(y: Real) -> Real:
        whole = np.zeros(state.shape)
        whole[..., level, :, :] = change(y)
        return whole

    return tape.linear(state, lambda y: change(y[..., level, :, :]), back)


def _begun(tape: Tape, state: Node, level: int, position: int) -> Node:
    """Return what a level has summed when a call begins.

    A level that is being read has its own bucket; one that is being written has what
    the lower levels hold of its block.
    """
    if position & 2 ** (level - 1):
        return _level(tape, state, level, np.asarray)
    total = _level(tape, state, 0, lambda m: 0.0 * m)
    for lower in range(1, level):
        if position & 2 ** (lower - 1):
            total = tape.add(total, _level(tape, state, lower, np.asarray))
    return total


def _stacked(tape: Tape, nodes: list[Node]) -> Node:
    total: Node | None = None
    for i, node in enumerate(nodes):

        def forward(y: Real, i: int = i) -> Real:
            whole = np.zeros((*y.shape[:-2], len(nodes), *y.shape[-2:]))
            whole[..., i, :, :] = y
            return whole

        def back(y: Real, i: int = i) -> Real:
            return y[..., i, :, :]

        part = tape.linear(node, forward, back)
        total = part if total is None else tape.overlay(total, part)
    assert total is not None
    return total
