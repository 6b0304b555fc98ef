"""Calls whose chunks are right, and what goes from one to the next is not.

A chunkwise kernel has two formulas: of pairs in a chunk, and of the memory before it.
An input may be another one in the second alone: in the memory that a chunk hands on, in
what its rows read of it, or in both.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial, reduce
from typing import NamedTuple

import numpy as np

from linkern.oracle.calls import Call, joined
from linkern.oracle.tape import Node, Tape
from linkern.testing.diagnosis.alternatives.changes import (
    Change,
    nudged_input,
    with_defaults,
)
from linkern.testing.diagnosis.alternatives.parts import by_part, nudged
from linkern.testing.diagnosis.alternatives.programs import (
    length_of,
    parts_of,
    ran,
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
# Tokens by which it is asked what a change is in.
FEW = 4
# Part of numbers that rounding in float64 may be.
CLOSE = 1e-9
# Parts of an output that are sums over tokens.
SUMS = ("numerator", "denominator", "preconditioner", "sum of keys", "sum of values")


def between_chunks(call: OracleCall, chunk: int) -> Iterator[tuple[str, Change]]:
    """Yield calls in which what is carried over the edges of chunks is another one."""
    operator = call.operator
    if not operator.causal or operator.feature_map:
        return
    # What is read is a sum, but for factors that depend on what was before the chunk.
    sums = len(operator.state) == 1 or not {*SUMS}.isdisjoint(parts_of(call))
    additive = sums and not operator.log_normalizer
    groups = [(_effects(call, chosen), [*each]) for chosen, each in _changes(call)]
    for words, (handed, read) in CARRIED.items():
        for effects, changes in groups if additive or not read else ():
            told = (handed <= effects.on_state) and (read <= effects.on_reads)
            for text, change in changes if told else ():
                made = partial(_carried, chunk, change, handed, read)
                yield f"{text} {words.format(chunk)}", made


class Effects(NamedTuple):
    """Results that a change is in: the state after some tokens, and what they read."""

    on_state: bool
    on_reads: bool


def _changes(
    call: OracleCall,
) -> Iterator[tuple[Change, Iterable[tuple[str, Change]]]]:
    """Yield changes of a call, those of one input or part together, with a nudge of it.

    Inputs of other places are the same in all formulas.
    """
    yield nudged_input("query"), scales(call)
    for text, change in other_erases(call):
        yield change, [(text, change)]
    for name in with_defaults(call):
        yield nudged_input(name), other_values(call, name, places=False)
    groups: dict[str, list[tuple[str, Change]]] = {}
    for part, text, change in by_part(call, places=False):
        groups.setdefault(part, []).append((text, change))
    for part, changes in groups.items():
        yield nudged(part), changes


def _effects(call: OracleCall, change: Change) -> Effects:
    """Return what a change is in, by some tokens and those before them."""
    other, differs = change(call), [True, True]

    def program(one: Call) -> tuple[Node, tuple[Node, ...]]:
        tokens = min(FEW, length_of(call, one) // 2)
        _, before = call.operator.program(tokens_of(call, one, 0, tokens))
        exact = replace(tokens_of(call, one, tokens, 2 * tokens), state=before)
        changed = with_inputs_of(other, exact)
        changed = replace(changed, early_erase=other.operator.early_erase)
        output, state = call.operator.program(exact)
        _, handed = other.operator.program(changed)
        read, _ = _read(call, exact, other, changed)
        pairs = [*zip(state, handed, strict=True)], [(output, read)]
        differs[:] = [
            not all(np.allclose(x.value, y.value, CLOSE, CLOSE) for x, y in some)
            for some in pairs
        ]
        return output, state

    with np.errstate(all="ignore"), suppress(np.linalg.LinAlgError):
        with_program(call, program).evaluate()
    return Effects(*differs)


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
            reads = read and (first > 0 or call.initial_state is not None)
            if reads:
                output, state = _read(call, exact, other, changed)
            else:
                output, state = call.operator.program(exact)
            if handed:
                _, state = other.operator.program(changed)
            outputs.append(output)
        return reduce(partial(joined, one.tape, axis=-2), outputs), state

    return with_program(call, program)


def _read(
    call: OracleCall, exact: Call, other: OracleCall, changed: Call
) -> tuple[Node, tuple[Node, ...]]:
    """Return the results of a chunk that reads the memory before it in another way.

    What it reads is that of the chunk alone, and what the memory adds to another one.
    """
    tape = exact.tape
    nothing = tuple(tape.constant(0 * x.value) for x in exact.state)
    alone, changed_alone = (replace(x, state=nothing) for x in (exact, changed))
    calls = (call, alone), (other, changed), (other, changed_alone)
    outputs, _, parts = zip(*(ran(x, one) for x, one in calls), strict=True)
    sums = {
        name: [
            _sum(tape, *nodes) for nodes in zip(*(x[name] for x in parts), strict=True)
        ]
        for name in SUMS
        if name in parts[0]
    }
    if sums:
        return with_nodes(call.operator.program, sums)(exact)
    return _sum(tape, *outputs), call.operator.program(exact)[1]


def _sum(tape: Tape, alone: Node, other: Node, less: Node) -> Node:
    """Return ``alone + other - less``."""
    minus = tape.contract("...,...->...", less, tape.constant(-1.0))
    return tape.add(alone, tape.add(other, minus))
