"""Operators in two steps: slots and a softmax, features and a quotient, a solve."""

from collections.abc import Callable
from itertools import combinations_with_replacement, permutations

import numpy as np

from linkern.oracle import functions
from linkern.oracle.calls import Call, column, joined, reshaped, sliced, taken
from linkern.oracle.scan import scanned
from linkern.oracle.tape import Node, Tape

__all__ = ["abc", "based", "gsa", "mesa", "power_retention", "rebased"]


def _slots(call: Call, slots: Node, log_decay: Node | None) -> tuple[Node, Node]:
    """Read slots by content, then values by slot; the output and both memories."""
    tape, key = call.tape, call.shared("key")
    k, size = key.shape[-1], key.shape[-1] + call["value"].shape[-1]
    scores, first = scanned(
        tape,
        query=tape.product(call.shared("query"), coefficient=call.scale),
        key=slots,
        value=key,
        state=sliced(tape, call.state[0], 0, k),
        log_decay=log_decay,
        transpose_state=True,
        depth=k,
        memory="the memory of keys",
    )
    output, second = scanned(
        tape,
        query=functions.softmax(tape, scores),
        key=slots,
        value=call["value"],
        state=sliced(tape, call.state[0], k, size),
        log_decay=log_decay,
        memory="the memory of values",
    )
    return output, joined(tape, first, second)


def gsa(call: Call) -> tuple[Node, tuple[Node, ...]]:
    """Return gated slot attention: two memories of slots, a softmax between."""
    output, memory = _slots(call, call.shared("slots"), call.get("log_decay"))
    return output, (memory,)


def abc(call: Call) -> tuple[Node, tuple[Node, ...]]:
    """Return the same, slots and decays from a running softmax over tokens."""
    tape, slots = call.tape, call.shared("slots")
    nothing = tape.constant(np.zeros((1, 1)))
    keep, share, _, end = functions.log_sums(tape, nothing, slots, call.state[1])
    output, memory = _slots(call, share, keep)
    return output, (memory, end)


def _powers(tape: Tape, x: Node) -> Node:
    """Return ``x outer x``, flat."""
    outer = tape.contract("...k,...l->...kl", x, x, prepared=True)
    return reshaped(tape, outer, (*x.shape[:-1], x.shape[-1] ** 2))


def _normalised(
    call: Call, features: Callable[[Tape, Node], Node], depth: int | None = None
) -> tuple[Node, tuple[Node, ...]]:
    tape, value = call.tape, call["value"]
    query = tape.product(call.shared("query"), coefficient=call.scale)
    ones = tape.constant(np.ones((*value.shape[:-1], 1)))
    normalizer = column(tape, call.state[1])
    sums, memory = scanned(
        tape,
        query=features(tape, query),
        key=features(tape, call.shared("key")),
        value=joined(tape, value, ones),
        state=joined(tape, call.state[0], normalizer),
        log_decay=call.per_channel("log_decay"),
        depth=depth or 2 * query.shape[-1] + 8,
    )
    size = value.shape[-1]
    numerator, denominator = (
        tape.part(name, sliced(tape, sums, *channels))
        for name, channels in (
            ("numerator", (0, size)),
            ("denominator", (size, size + 1)),
        )
    )
    last = sliced(tape, memory, size, size + 1)
    return tape.divide(numerator, denominator), (
        sliced(tape, memory, 0, size),
        tape.linear(last, lambda y: y[..., 0], lambda y: y[..., None]),
    )


def _taylor(tape: Tape, x: Node) -> Node:
    ones = tape.constant(np.ones((*x.shape[:-1], 1)))
    half = tape.part("factors of products", tape.constant(0.5**0.5))
    powers = tape.part("products of channels", _powers(tape, x))
    return joined(tape, joined(tape, ones, x), tape.product(powers, half))


def based(call: Call) -> tuple[Node, tuple[Node, ...]]:
    """Return weights ``1 + x + x^2 / 2``, normalised."""
    return _normalised(call, _taylor)


def rebased(call: Call) -> tuple[Node, tuple[Node, ...]]:
    """Return weights ``x^2``, normalised."""
    return _normalised(call, _powers)


def power_retention(call: Call, *, degree: int) -> tuple[Node, tuple[Node, ...]]:
    """Return weights ``x^degree`` under a decay, normalised."""
    k = call["query"].shape[-1]
    chosen = list(combinations_with_replacement(range(k), degree))
    at = [int(np.ravel_multi_index(x, (k,) * degree)) for x in chosen]
    orders = [len({*permutations(x)}) for x in chosen]

    def features(tape: Tape, x: Node) -> Node:
        products = x
        for _ in range(degree - 1):
            outer = tape.contract("...f,...k->...fk", products, x, prepared=True)
            size = outer.shape[-2] * k
            products = reshaped(tape, outer, (*x.shape[:-1], size))
        once = taken(tape, products, at)
        factor = tape.part("factors of products", tape.constant(np.sqrt(orders)))
        return tape.product(once, factor)

    # A score is a sum over channels to the power, or one over features.
    return _normalised(call, features, max(degree * (k + 4), len(chosen)))


def mesa(call: Call) -> tuple[Node, tuple[Node, ...]]:
    """Return ``((H_kk + ridge)^-1 q)^T H_kv``: least squares over all tokens."""
    tape, key = call.tape, call.shared("key")
    k, length = key.shape[-1], key.shape[-2]
    size = k + call["value"].shape[-1]
    columns = joined(tape, key, call["value"])
    scaled = tape.product(key, call.per_channel("beta"))
    entries = tape.contract(
        "...k,...l->...kl", scaled, columns, prepared=True, roles=("rows", "value")
    )
    lead = columns.shape[:-2]
    ones = tape.constant(np.ones((length, 1)))
    states, memory = scanned(
        tape,
        query=ones,
        key=reshaped(tape, entries, (*lead, length, k * size)),
        value=ones,
        state=reshaped(tape, call.state[0], (*lead, k * size, 1)),
        log_decay=call.per_channel("log_decay"),
        transpose_state=True,
        depth=2,
    )
    states = reshaped(tape, states, (*lead, length, k, size))
    ridge = call.get("ridge") or tape.constant(np.ones(k))
    eye = tape.constant(np.eye(k))
    diagonal = tape.contract("...k,...kl->...kl", ridge, eye, prepared=True)
    if len(diagonal.shape) > 2:
        diagonal = tape.linear(
            diagonal, lambda y: y[..., None, :, :], lambda y: y[..., 0, :, :]
        )
    keys = tape.part("sum of keys", sliced(tape, states, 0, k))
    values = tape.part("sum of values", sliced(tape, states, k, size))
    matrix = tape.add(keys, diagonal)
    query = tape.product(call.shared("query"), coefficient=call.scale)
    x = functions.solved(tape, matrix, query)
    output = tape.contract("...k,...kv->...v", x, values)
    return output, (reshaped(tape, memory, (*lead, k, size)),)
