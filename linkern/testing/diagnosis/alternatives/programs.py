"""Programs of the oracle with other nodes, in a part of them or at some tokens."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from linkern.oracle.balls import Ball
from linkern.oracle.calls import Call, Program
from linkern.oracle.tape import Node, Tape
from linkern.testing.diagnosis.alternatives.changes import Change
from linkern.testing.influence.maps import Real
from linkern.testing.problems.expected import OracleCall

__all__ = [
    "Parts",
    "first_tokens",
    "in_place",
    "length_of",
    "parts_of",
    "ran",
    "recorded",
    "tokens_of",
    "with_inputs_of",
    "with_nodes",
    "with_program",
]

Parts = Mapping[str, list[Node]]


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


def ran(call: OracleCall, one: Call) -> tuple[Node, tuple[Node, ...], Parts]:
    """Return the output and the state of a call on a tape, and its parts by name."""
    parts: dict[str, list[Node]] = {}

    def kept(name: str, node: Node) -> Node:
        parts.setdefault(name, []).append(node)
        return node

    recording = replace(one, tape=replace(one.tape, other=kept))
    output, state = call.operator.program(recording)
    return output, state, parts


def recorded(call: OracleCall, one: Call) -> Parts:
    """Return the parts of a call on a tape by their names, each in order."""
    return ran(call, one)[2]


def in_place(tape: Tape, x: Real, node: Node) -> Node:
    """Return other numbers in place of those of a node, which gets their gradient."""
    return tape.record([Ball(x)], [node], lambda gradients: gradients)[0]


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
            inputs[name] = in_place(one.tape, x, node)
    return replace(one, inputs=inputs)


def first_tokens(change: Change, tokens: int, call: OracleCall) -> OracleCall:
    """Return a changed call that is cut to its first tokens, and returns their rows."""
    other = change(call)
    if tokens >= call.sizes["t"]:
        return other

    def program(one: Call) -> tuple[Node, tuple[Node, ...]]:
        return other.operator.program(tokens_of(other, one, 0, tokens))

    return with_program(other, program)


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


def length_of(call: OracleCall, one: Call) -> int:
    """Return the tokens of a call on a tape, which may have some of another's alone."""
    operator = call.operator
    known = (operator.input(name) for name in one.inputs if name in operator.names)
    name, axis = next((x.name, x.axes.index("t")) for x in known if "t" in x.axes)
    return one.inputs[name].shape[axis]


def _token_axis(call: OracleCall, name: str) -> int | None:
    operator = call.operator
    return operator.input(name).token_axis if name in operator.names else None


def parts_of(call: OracleCall) -> Parts:
    """Return the parts of a call by their names, each in order."""
    parts: dict[str, list[Node]] = {}

    def program(one: Call) -> tuple[Node, tuple[Node, ...]]:
        parts.update(recorded(call, one))
        return one["value"], ()

    with_program(call, program).evaluate()
    return parts
