"""Calls in which one part of the equation has another input, or is another part.

A key is written and erases; a decay is that of the memory and of what it is divided by.
Programs of the oracle name such parts, so that one of them can be that of another call.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, permutations

import numpy as np

from linkern.oracle.calls import Call
from linkern.oracle.tape import Node
from linkern.testing.diagnosis.alternatives.changes import (
    Change,
    nudge,
    nudged_input,
    with_defaults,
)
from linkern.testing.diagnosis.alternatives.programs import (
    Parts,
    in_place,
    parts_of,
    recorded,
    with_inputs_of,
    with_nodes,
    with_program,
)
from linkern.testing.diagnosis.alternatives.replacements import scales
from linkern.testing.diagnosis.alternatives.values import other_values
from linkern.testing.influence.maps import Real
from linkern.testing.problems.expected import OracleCall

__all__ = ["by_part", "nudged", "other_parts"]

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


def other_parts(call: OracleCall) -> Iterator[tuple[str, Change]]:
    """Yield calls with another input in one part of the equation, or another part."""
    for _, text, change in by_part(call):
        yield text, change


def nudged(part: str) -> Change:
    """Return the change of a call in which a part has other numbers everywhere."""
    return partial(_with_part, part, partial(_nudged, part))


def by_part(
    call: OracleCall, *, places: bool = True
) -> Iterator[tuple[str, str, Change]]:
    """Yield the calls of `other_parts`, each with the part that is another one.

    Without places an input is of the same entry, or of a token beside it.
    """
    parts = parts_of(call)
    for name in with_defaults(call):
        uses = _uses(call, name, parts)
        others = chain(
            scales(call) if name == "query" else (),
            other_values(call, name, places=places),
        )
        for text, change in others if len(uses) > 1 else ():
            for part in uses:
                made = partial(_of_other_call, part, change)
                yield part, f"{text} in {_words(part)}", partial(_with_part, part, made)
    for part, nodes in parts.items():
        if all(node.shape[-2:-1] == (call.sizes["t"],) for node in nodes):
            text = f"{_words(part)} of the token before"
            made = partial(_of_token_before, part)
            yield part, text, partial(_with_part, part, made)
        decay = part.replace("query", "log_decay")
        if part.startswith("query") and parts[decay][0].shape[-1] == 1:
            undecayed = partial(_before_decay, part, decay)
            text = f"{_words(part)} without the decay of the row"
            yield part, text, partial(_with_part, part, undecayed)
    for one, other in permutations([x for x in EXCHANGED if x in parts], 2):
        if [x.shape for x in parts[one]] == [x.shape for x in parts[other]]:
            text = f"{EXCHANGED[one]} in place of {EXCHANGED[other]}"
            yield other, text, partial(_with_part, other, partial(_of_part, one))
    for words, chosen in FACTORS_OF.items() if FACTORS in parts else ():
        for power, other in POWERS.items():
            text = other.format(f"the {FACTORS} of channels of {words}")
            made = partial(_to_power, power, chosen)
            yield FACTORS, text, partial(_with_part, FACTORS, made)


def _words(part: str) -> str:
    role, _, memory = part.partition(" of ")
    words = WORDS.get(role, f"the {role}")
    return f"{words} of {memory}" if memory else words


def _with_part(part: str, made: Made, call: OracleCall) -> OracleCall:
    """Return the call in which the nodes of a part are others."""

    def program(one: Call) -> tuple[Node, tuple[Node, ...]]:
        return with_nodes(call.operator.program, {part: made(call, one)})(one)

    return with_program(call, program)


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


def _before_decay(
    query: str, decay: str, call: OracleCall, one: Call
) -> Iterator[Node]:
    """Yield what reads a memory as if its row had not decayed it."""
    parts = recorded(call, one)
    for x, y in zip(parts[query], parts[decay], strict=True):
        with np.errstate(over="ignore"):
            back = one.tape.constant(np.exp(-y.value))
        yield one.tape.contract("...,...->...", x, back)


def _of_part(part: str, call: OracleCall, one: Call) -> Iterable[Node]:
    return [in_place(one.tape, x.value, x) for x in recorded(call, one)[part]]


def _nudged(part: str, call: OracleCall, one: Call) -> Iterable[Node]:
    return [in_place(one.tape, nudge(x.value), x) for x in recorded(call, one)[part]]


def _to_power(
    power: int, chosen: tuple[int, ...], call: OracleCall, one: Call
) -> Iterable[Node]:
    nodes = recorded(call, one)[FACTORS]
    return [
        one.tape.constant(x.value**power) if n in chosen else x
        for n, x in enumerate(nodes)
    ]


def _uses(call: OracleCall, name: str, parts: Parts) -> list[str]:
    """Return the names of the parts that an input is in, but for states."""
    other = parts_of(nudged_input(name)(call))
    return [
        part
        for part, nodes in parts.items()
        if not part.startswith("state")
        and any(
            not np.array_equal(y.value, z.value, equal_nan=True)
            for y, z in zip(nodes, other[part], strict=True)
        )
    ]
