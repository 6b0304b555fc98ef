"""Calls whose chunks are right, and what goes from one to the next is not.

A chunkwise kernel has two formulas: of pairs in a chunk, and of the memory before it.
An input may be another one in the second alone: in the memory that a chunk hands on, in
what its rows read of it, or in both.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial, reduce
from itertools import chain

from linkern.oracle.calls import Call, joined
from linkern.oracle.tape import Node, Tape
from linkern.testing.diagnosis.alternatives.changes import Change, with_defaults
from linkern.testing.diagnosis.alternatives.parts import other_parts
from linkern.testing.diagnosis.alternatives.programs import (
    length_of,
    recorded,
    tokens_of,
    with_inputs_of,
    with_nodes,
    with_program,
)
from linkern.testing.diagnosis.alternatives.replacements import other_erases, scales
from linkern.testing.diagnosis.alternatives.values import other_values
from linkern.testing.problems.expected import OracleCall

__all__ = ["between_chunks"]

# What is another one, by its words: the memory that is handed on, and its reading.
CARRIED = {
    "in the memory that chunks of {} hand on": (True, False),
    "in what is carried from one chunk of {} to the next": (True, True),
    "in what rows read of the memory before their chunk of {}": (False, True),
}
# Parts of an output that are sums over tokens.
SUMS = ("numerator", "denominator")


def between_chunks(call: OracleCall, chunk: int) -> Iterator[tuple[str, Change]]:
    """Yield calls in which what is carried over the edges of chunks is another one."""
    operator = call.operator
    if not operator.causal or operator.feature_map:
        return
    # What is read is a sum, but for factors that depend on what was before the chunk.
    sums = len(operator.state) == 1 + operator.normalised
    additive = sums and not operator.log_normalizer
    for words, (handed, read) in CARRIED.items():
        if read and not additive:
            continue
        for text, change in _changes(call):
            made = partial(_carried, chunk, change, handed, read)
            yield f"{text} {words.format(chunk)}", made


def _changes(call: OracleCall) -> Iterator[tuple[str, Change]]:
    """Yield changes of a call; inputs of other places are the same in all formulas."""
    yield from chain(scales(call), other_erases(call))
    for name in with_defaults(call):
        yield from other_values(call, name, places=False)
    yield from other_parts(call, places=False)


def _carried(
    chunk: int, change: Change, handed: bool, read: bool, call: OracleCall
) -> OracleCall:
    """Return a call whose chunks hand on, or read, the memory of a changed one."""
    other = change(call)

    def program(one: Call) -> tuple[Node, tuple[Node, ...]]:
        state, outputs = one.state, []
        for first in range(0, length_of(call, one), chunk):
            exact = replace(tokens_of(call, one, first, first + chunk), state=state)
            changed = with_inputs_of(other, exact)
            changed = replace(changed, early_erase=other.operator.early_erase)
            # Programs are run for what is taken of them alone.
            reads = read and (first > 0 or call.initial_state is not None)
            if not (handed and reads):
                output, state = call.operator.program(exact)
            if reads:
                output = _read(call, exact, other, changed)
            if handed:
                _, state = other.operator.program(changed)
            outputs.append(output)
        return reduce(partial(joined, one.tape, axis=-2), outputs), state

    return with_program(call, program)


def _read(call: OracleCall, exact: Call, other: OracleCall, changed: Call) -> Node:
    """Return the output of a chunk that reads the memory before it in another way.

    It is the output of the chunk alone, and what the memory adds to another one.
    """
    tape = exact.tape
    nothing = tuple(tape.constant(0 * x.value) for x in exact.state)
    alone, changed_alone = (replace(x, state=nothing) for x in (exact, changed))
    calls = (call, alone), (other, changed), (other, changed_alone)
    if not call.operator.normalised:
        return _sum(tape, *(x.operator.program(one)[0] for x, one in calls))
    parts = [recorded(x, one) for x, one in calls]
    sums = {
        name: [
            _sum(tape, *nodes) for nodes in zip(*(x[name] for x in parts), strict=True)
        ]
        for name in SUMS
    }
    return with_nodes(call.operator.program, sums)(exact)[0]


def _sum(tape: Tape, alone: Node, other: Node, less: Node) -> Node:
    """Return ``alone + other - less``."""
    minus = tape.contract("...,...->...", less, tape.constant(-1.0))
    return tape.add(alone, tape.add(other, minus))
