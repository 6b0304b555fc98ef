"""Operators that erase before they write: the delta rule and its kin."""

from linkern.oracle.calls import Call, column, picked, placed, swapped
from linkern.oracle.scan import scanned
from linkern.oracle.tape import Node

__all__ = ["comba", "delta_rule", "dplr", "gated_delta_product", "gdn2", "oja", "rwkv7"]


def _delta(
    call: Call,
    *,
    key: Node,
    erase: Node,
    value: Node,
    log_decay: Node | None = None,
) -> tuple[Node, tuple[Node, ...]]:
    output, memory = scanned(
        call.tape,
        query=call.tape.product(call.shared("query"), coefficient=call.scale),
        key=key,
        value=value,
        state=call.state[0],
        log_decay=log_decay,
        erase=erase,
        early_erase=call.early_erase,
    )
    return output, (memory,)


def delta_rule(call: Call) -> tuple[Node, tuple[Node, ...]]:
    """Return ``S = R + beta k (v - R^T k)^T``; ``R = e^g S`` for any gate."""
    key = call.shared("key")
    scaled = call.tape.product(key, call.per_channel("beta"))
    decay = call.get("log_decay")
    if decay is not None and len(decay.shape) < len(call["value"].shape):
        decay = column(call.tape, decay)
    return _delta(call, key=scaled, erase=key, value=call["value"], log_decay=decay)


def gdn2(call: Call) -> tuple[Node, tuple[Node, ...]]:
    """Return ``S = R + k (w * v - R^T (b * k))^T``, ``R = diag(e^g) S``."""
    key = call.shared("key")
    return _delta(
        call,
        key=key,
        erase=call.tape.product(key, call.get("erase_gate")),
        value=call.tape.product(call["value"], call.get("write_gate")),
        log_decay=call.get("log_decay"),
    )


def comba(call: Call) -> tuple[Node, tuple[Node, ...]]:
    """As the published kernels do, the erase reads the memory before its decay."""
    return _delta(
        call,
        key=call.tape.product(call.shared("key"), call.per_channel("beta")),
        erase=call.shared("auxiliary_key"),
        value=call["value"],
        log_decay=call.per_channel("log_decay"),
    )


def gated_delta_product(call: Call) -> tuple[Node, tuple[Node, ...]]:
    """Return several delta rules for each token, after one decay."""
    tape, key = call.tape, call.shared("key")
    query = tape.product(call.shared("query"), coefficient=call.scale)
    n = max(key.shape[-2] // max(query.shape[-2], 1), 1)
    g = call.per_channel("log_decay")
    reads, memory = scanned(
        tape,
        query=placed(tape, query, n - 1, n),
        key=tape.product(key, call.per_channel("beta")),
        value=call["value"],
        state=call.state[0],
        log_decay=None if g is None else placed(tape, g, 0, n),
        erase=key,
        rows_per_token=n,
    )
    return picked(tape, reads, n - 1, n), (memory,)


def _untied(
    call: Call, *, erase: Node, rate: Node, sign: float
) -> tuple[Node, tuple[Node, ...]]:
    """``S = e^g S_{t-1} + sign rate (erase^T S_{t-1}) + k v^T``, in two rows."""
    tape, g = call.tape, call.get("log_decay")
    query = tape.product(call.shared("query"), coefficient=call.scale)
    keys = tape.overlay(
        placed(tape, rate, 0, 2), placed(tape, call.shared("key"), 1, 2)
    )
    reads, memory = scanned(
        tape,
        query=placed(tape, query, 1, 2),
        key=keys,
        value=placed(tape, call["value"], 1, 2),
        state=call.state[0],
        log_decay=None if g is None else placed(tape, g, 0, 2),
        erase=placed(tape, tape.product(erase, coefficient=-sign), 0, 2),
        early_erase=call.early_erase,
        rows_per_token=2,
    )
    return picked(tape, reads, 1, 2), (memory,)


def dplr(call: Call) -> tuple[Node, tuple[Node, ...]]:
    """Return ``S = diag(e^g) S + b (a^T S) + k v^T``, decayed or not."""
    return _untied(call, erase=call.shared("a"), rate=call.shared("b"), sign=1.0)


def rwkv7(call: Call) -> tuple[Node, tuple[Node, ...]]:
    """Return the same, ``-a`` a removal key and ``b`` its product with a rate."""
    key = call.shared("removal_key")
    rate = key
    if "removal_rate" in call.inputs:
        rate = call.tape.product(key, call.shared("removal_rate"))
    return _untied(call, erase=key, rate=rate, sign=-1.0)


def oja(call: Call) -> tuple[Node, tuple[Node, ...]]:
    """Return Oja's rule: values erase, and what is written is the key."""
    tape = call.tape
    output, memory = scanned(
        tape,
        query=tape.product(call.shared("query"), coefficient=call.scale),
        key=tape.product(call["value"], call.per_channel("beta")),
        value=call.shared("key"),
        state=swapped(tape, call.state[0]),
        log_decay=call.get("log_decay"),
        erase=call["value"],
        transpose_state=True,
    )
    return output, (swapped(tape, memory),)
