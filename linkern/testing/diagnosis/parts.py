"""Calls in which one part of the equation has another input, or is another part.

A key is written and erases; a decay is that of the memory and of what it is divided by.
Programs of the oracle name such parts, so that one of them can be that of another call.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain, permutations

import numpy as np

from linkern.oracle.balls import Ball
from linkern.oracle.calls import Call, Program
from linkern.oracle.tape import Node, Tape
from linkern.testing.diagnosis.replacements import (
    Change,
    meaning,
    other_values,
    scales,
    with_defaults,
)
from linkern.testing.influence.maps import Real
from linkern.testing.problems.expected import OracleCall

__all__ = [
    "first_tokens",
    "length_of",
    "other_parts",
    "recorded",
    "tokens_of",
    "with_inputs_of",
    "with_nodes",
    "with_program",
]

Parts = Mapping[str, list[Node]]
# Returns the nodes that take the place of a part, in the order of its own.
Made = Callable[[OracleCall, Call], Iterable[Node]]

# Words of the parts that every memory has; programs say those of others.
WORDS = {
    "query": "the read",
    "key": "the write",
    "value": "the values written",
    "log_decay": "the decay",
    "follow": "the step",
}
# Parts that may be taken for each other.
EXCHANGED = {
    "key": "what is written",
    "erase": "what erases",
    "value": "the values written",
    "scaled key": "the scaled key",
}
# Factors of features that are products of channels: of queries, and of keys.
FACTORS = "factors of products"
FACTORS_OF = {"queries and keys": (0, 1), "queries": (0,), "keys": (1,)}
# A kernel may leave them out, or have their squares, which are those of scores.
POWERS = {0: "1 in place of {}", 2: "the squares of {}"}


def other_parts(
    call: OracleCall, *, places: bool = True
) -> Iterator[tuple[str, Change]]:
    """Yield calls with another input in one part of the equation, or another part.

    Without places an input is of the same entry, or of a token beside it.
    """
    parts = _parts(call)
    for name in with_defaults(call):
        uses = _uses(call, name, parts)
        others = chain(
            scales(call) if name == "query" else (),
            other_values(call, name, places=places),
        )
        for text, change in others if len(uses) > 1 else ():
            for part in uses:
                made = partial(_of_other_call, part, change)
                yield f"{text} in {_words(part)}", partial(_with_part, part, made)
    for part, nodes in parts.items():
        if all(node.shape[-2:-1] == (call.sizes["t"],) for node in nodes):
            text = f"{_words(part)} of the token before"
            made = partial(_of_token_before, part)
            yield text, partial(_with_part, part, made)
    for one, other in permutations([x for x in EXCHANGED if x in parts], 2):
        if [x.shape for x in parts[one]] == [x.shape for x in parts[other]]:
            text = f"{EXCHANGED[one]} in place of {EXCHANGED[other]}"
            yield text, partial(_with_part, other, partial(_of_part, one))
    for words, chosen in FACTORS_OF.items() if FACTORS in parts else ():
        for power, other in POWERS.items():
            text = other.format(f"the {FACTORS} of channels of {words}")
            made = partial(_to_power, power, chosen)
            yield text, partial(_with_part, FACTORS, made)


def _words(part: str) -> str:
    role, _, memory = part.partition(" of ")
    words = WORDS.get(role, f"the {role}")
    return f"{words} of {memory}" if memory else words


def _with_part(part: str, made: Made, call: OracleCall) -> OracleCall:
    """Return the call in which the nodes of a part are others."""

    def program(one: Call) -> tuple[Node, tuple[Node, ...]]:
        return with_nodes(call.operator.program, {part: made(call, one)})(one)

    return with_program(call, program)


def with_program(call: OracleCall, program: Program) -> OracleCall:
    """Return a call of the same operator by another program."""
    return replace(call, operator=replace(call.operator, program=program))


def with_nodes(program: Program, others: Mapping[str, Iterable[Node]]) -> Program:
    """Return a program with other nodes in some parts, in the order of its own."""

    def changed(one: Call) -> tuple[Node, tuple[Node, ...]]:
        left = {part: iter(nodes) for part, nodes in others.items()}

        def other(name: str, node: Node) -> Node:
            # Whoever asks for the parts of the program gets the other nodes.
            return one.tape.part(name, next(left[name]) if name in left else node)

        return program(replace(one, tape=replace(one.tape, other=other)))

    return changed


def with_inputs_of(call: OracleCall, one: Call) -> Call:
    """Return a call on a tape with the inputs that another one has at its tokens.

    They get the gradients of those in whose place they are.
    """
    inputs = dict(one.inputs)
    for name, node in one.inputs.items():
        x = call.meant.get(name)
        axis = _token_axis(call, name)
        if x is not None and axis is not None:
            first = one.position * (x.shape[axis] // call.sizes["t"])
            there = range(first, first + node.shape[axis])
            x = np.take(x, there, axis) if len(there) < x.shape[axis] else x
        if x is not None:
            inputs[name] = _in_place(one.tape, x, node)
    return replace(one, inputs=inputs)


def first_tokens(change: Change, tokens: int, call: OracleCall) -> OracleCall:
    """Return a changed call that is cut to its first tokens, and returns their rows."""
    other = change(call)
    if tokens >= call.sizes["t"]:
        return other

    def program(one: Call) -> tuple[Node, tuple[Node, ...]]:
        return other.operator.program(tokens_of(other, one, 0, tokens))

    return with_program(other, program)


def length_of(call: OracleCall, one: Call) -> int:
    """Return the tokens of a call on a tape, which may have some of another's alone."""
    operator = call.operator
    known = (operator.input(name) for name in one.inputs if name in operator.names)
    name, axis = next((x.name, x.axes.index("t")) for x in known if "t" in x.axes)
    return one.inputs[name].shape[axis]


def tokens_of(call: OracleCall, one: Call, first: int, last: int) -> Call:
    """Return the tokens of a call on a tape from one to before another."""
    length = length_of(call, one)

    def some(name: str, x: Node) -> Node:
        axis = _token_axis(call, name)
        if axis is None:
            return x
        each = x.shape[axis] // length
        there = (*(slice(None),) * axis, slice(first * each, last * each))

        def back(y: Real) -> Real:
            whole = np.zeros(x.shape)
            whole[there] = y
            return whole

        return one.tape.linear(x, lambda y: y[there], back)

    inputs = {name: some(name, x) for name, x in one.inputs.items()}
    return replace(one, inputs=inputs, position=one.position + first)


def _token_axis(call: OracleCall, name: str) -> int | None:
    operator = call.operator
    return operator.input(name).token_axis if name in operator.names else None


def _of_other_call(
    part: str, change: Change, call: OracleCall, one: Call
) -> Iterable[Node]:
    return recorded(call, with_inputs_of(change(call), one))[part]


def _of_token_before(part: str, call: OracleCall, one: Call) -> Iterable[Node]:
    """Return the rows of the token before, zeros at the first."""

    def later(y: Real) -> Real:
        return np.concatenate([0 * y[..., :1, :], y[..., :-1, :]], axis=-2)

    def earlier(y: Real) -> Real:
        return np.concatenate([y[..., 1:, :], 0 * y[..., :1, :]], axis=-2)

    return [one.tape.linear(x, later, earlier) for x in recorded(call, one)[part]]


def _of_part(part: str, call: OracleCall, one: Call) -> Iterable[Node]:
    return [_in_place(one.tape, x.value, x) for x in recorded(call, one)[part]]


def _to_power(
    power: int, chosen: tuple[int, ...], call: OracleCall, one: Call
) -> Iterable[Node]:
    nodes = recorded(call, one)[FACTORS]
    return [
        one.tape.constant(x.value**power) if n in chosen else x
        for n, x in enumerate(nodes)
    ]


def _in_place(tape: Tape, x: Real, node: Node) -> Node:
    """Return other numbers in place of those of a node, which gets their gradient."""
    return tape.record([Ball(x)], [node], lambda gradients: gradients)[0]


def recorded(call: OracleCall, one: Call) -> Parts:
    """Return the parts of a call on a tape by their names, each in order."""
    parts: dict[str, list[Node]] = {}

    def kept(name: str, node: Node) -> Node:
        parts.setdefault(name, []).append(node)
        return node

    call.operator.program(replace(one, tape=replace(one.tape, other=kept)))
    return parts


def _parts(call: OracleCall) -> Parts:
    parts: dict[str, list[Node]] = {}

    def program(one: Call) -> tuple[Node, tuple[Node, ...]]:
        parts.update(recorded(call, one))
        return one["value"], ()

    with_program(call, program).evaluate()
    return parts


def _uses(call: OracleCall, name: str, parts: Parts) -> list[str]:
    """Return the names of the parts that an input is in, but for states."""
    x = with_defaults(call)[name]
    other = _parts(meaning(call, {name: 0.75 * x - 0.125}))
    return [
        part
        for part, nodes in parts.items()
        if not part.startswith("state")
        and any(
            not np.array_equal(y.value, z.value, equal_nan=True)
            for y, z in zip(nodes, other[part], strict=True)
        )
    ]
