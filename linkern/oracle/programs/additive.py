"""Operators that decay and add: fixed decays, gates, a bonus for the own token."""

import numpy as np

from linkern.oracle import functions
from linkern.oracle.calls import Call, as_row, picked, placed, reshaped, swapped
from linkern.oracle.scan import scanned
from linkern.oracle.tape import Node

__all__ = ["at_once", "gla", "hgrn", "per_head", "rwkv4", "rwkv6", "simple_gla"]


def _additive(call: Call, log_decay: Node | None) -> tuple[Node, tuple[Node, ...]]:
    query = call.tape.product(call.shared("query"), coefficient=call.scale)
    output, memory = scanned(
        call.tape,
        query=query,
        key=call.shared("key"),
        value=call["value"],
        state=call.state[0],
        log_decay=log_decay,
    )
    return output, (memory,)


def per_head(call: Call) -> tuple[Node, tuple[Node, ...]]:
    """Retention and lightning attention: a log-decay for each head."""
    g = call["log_decay"]
    length = call["value"].shape[-2]
    wide = call.tape.contract(
        "...,...->...",
        reshaped(call.tape, g, (*g.shape, 1, 1)),
        call.tape.constant(np.ones((length, 1))),
        prepared=True,
    )
    return _additive(call, wide)


def simple_gla(call: Call) -> tuple[Node, tuple[Node, ...]]:
    """Return ``S = e^g S + k v^T``, a decay for each token."""
    return _additive(call, call.per_channel("log_decay"))


def gla(call: Call) -> tuple[Node, tuple[Node, ...]]:
    """Return ``S = diag(e^g) S + k v^T``, a decay for each channel of the key."""
    return _additive(call, call.get("log_decay"))


def hgrn(call: Call) -> tuple[Node, tuple[Node, ...]]:
    """Return ``h = e^g h + x``, channel by channel."""
    ones = call.tape.constant(np.ones((call["value"].shape[-2], 1)))
    output, memory = scanned(
        call.tape,
        query=ones,
        key=call["value"],
        value=ones,
        state=swapped(call.tape, call.state[0]),
        log_decay=call.get("log_decay"),
        transpose_state=True,
        depth=1,
    )
    return output, (swapped(call.tape, memory),)


def rwkv4(call: Call) -> tuple[Node, tuple[Node, ...]]:
    """Return a mean of the values before a token, with the token and its bonus."""
    tape = call.tape
    key, value = call["key"], call["value"]
    decay = call.get("log_decay") or tape.constant(0.0)
    g = tape.contract(
        "...,...->...", as_row(tape, decay), tape.constant(1.0), prepared=True
    )
    keep, share, before, end = functions.log_sums(tape, g, key, call.state[1])
    new = tape.contract("...,...->...", share, value)
    ones = tape.constant(np.ones((2 * key.shape[-2], 1)))
    reads, memory = scanned(
        tape,
        query=ones,
        key=placed(tape, new, 1, 2),
        value=ones,
        state=swapped(tape, call.state[0]),
        log_decay=placed(tape, keep, 1, 2),
        transpose_state=True,
        depth=1,
        rows_per_token=2,
    )
    mean = picked(tape, reads, 0, 2)
    logit = key
    if "bonus" in call.inputs:
        logit = tape.add(key, as_row(tape, call["bonus"]))
    minus = tape.contract("...,...->...", before, tape.constant(-1.0), prepared=True)
    d = tape.add(logit, minus)
    output = tape.add(
        tape.contract("...,...->...", functions.sigmoid(tape, d), value),
        tape.contract("...,...->...", functions.sigmoid(tape, d, sign=-1.0), mean),
    )
    return output, (swapped(tape, memory), end)


def rwkv6(call: Call) -> tuple[Node, tuple[Node, ...]]:
    """Return ``q^T (S + (u * k) v^T)``; then ``S = diag(e^g) S + k v^T``."""
    tape, key = call.tape, call.shared("key")
    query = tape.product(call.shared("query"), coefficient=call.scale)
    g = call.get("log_decay")
    reads, memory = scanned(
        tape,
        query=placed(tape, query, 0, 2),
        key=placed(tape, key, 1, 2),
        value=placed(tape, call["value"], 1, 2),
        state=call.state[0],
        log_decay=None if g is None else placed(tape, g, 1, 2),
        rows_per_token=2,
    )
    output = picked(tape, reads, 0, 2)
    if "bonus" in call.inputs:
        now = tape.product(key, as_row(tape, call["bonus"]))
        output = tape.add(output, at_once(call, query, now, g))
    return output, (memory,)


def at_once(call: Call, query: Node, key: Node, log_decay: Node | None) -> Node:
    """Return ``(q_t . k_t) v_t``, as rows that begin with an empty memory.

    No decay acts on it, but kernels that form the gradient of a decay by subtraction
    put these terms in and take them out again.
    """
    value = call["value"]
    lead, length = value.shape[:-2], value.shape[-2]
    nothing = np.zeros((*lead, key.shape[-1], value.shape[-1]))
    reads, _ = scanned(
        call.tape,
        query=query,
        key=key,
        value=value,
        state=call.tape.constant(nothing),
        log_decay=log_decay,
        fresh=np.ones(length, dtype=bool),
        memory="the token itself",
    )
    return reads
