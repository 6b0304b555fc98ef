"""Readings: influence maps from the replies to scenes.

Rows and sources are counted from the first token of the span or of the packed sequence
that a row is in. Earlier tokens of the sequence reach it through a state alone: their
source is `INITIAL_STATE`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from linkern.oracle import Bounded
from linkern.testing.errors import OutOfTime, TargetRaised
from linkern.testing.influence.maps import (
    AXES,
    BLURRED,
    FROM_THE_END,
    LAST_CALL,
    LAST_ROW,
    SPANS_BETWEEN,
    Flags,
    Index,
    InfluenceMap,
    Real,
)
from linkern.testing.influence.parts import Parts
from linkern.testing.influence.scenes import NOWHERE, kept_sources, per_token
from linkern.testing.problems.expected import kept_over
from linkern.testing.problems.packing import (
    Packing,
    exact_outputs,
    packed_sequences,
)
from linkern.testing.problems.problem import Problem
from linkern.testing.target.frameworks import numpy_dtype
from linkern.testing.target.process import Target
from linkern.testing.target.protocol import Call, Reply

__all__ = [
    "CONFIDENCE",
    "OF_KEYS",
    "Reading",
    "Table",
    "maps_of",
    "output_map",
    "output_maps",
    "packed_maps",
    "shaped",
    "state_maps",
    "with_joined",
]

Reading = Callable[[Problem, Reply], Iterable[InfluenceMap]]
# Of independent errors, hardly one in a million is beyond.
CONFIDENCE = 5.0
# Ends of the names of results, those in which a defect shows most plainly first.
PLAIN = (
    (" sequences", " initial state", " final state", " across cuts", " last sequence"),
    ("output", "gradient of value"),
    ("denominator",),
)
# Weights of tokens of other packed sequences.
ACROSS = "output across sequences"
# What these are in one sequence of all tokens.
JOINED = "that of joined sequences"
# What others are whose sums alone are those of all tokens.
OVER_JOINED = "that with the denominators of joined sequences"
STATES = ("final state", "final normalizer")
# The columns of a memory that hold keys, beside those of values.
OF_KEYS = "final state of keys"


def maps_of(
    target: Target,
    problems: Iterable[Problem],
    read: Reading,
    *,
    wants_state: bool = False,
) -> list[InfluenceMap]:
    """Return the maps of those problems that a target answers, plain ones first.

    The knobs ``cuts`` and ``packing`` of a problem say how it is called.

    Raises
    ------
    TargetRaised, OutOfTime
        If it answers none.
    """
    maps: list[InfluenceMap] = []
    errors: list[TargetRaised | OutOfTime] = []
    for problem in problems:
        packing: Packing | None = problem.knobs.get("packing")
        cuts = packing.cuts if packing else problem.knobs.get("cuts", ())
        call = Call(
            problem.inputs,
            scale=problem.scale,
            cuts=cuts,
            segments=packing.segments if packing else (),
            wants_state=wants_state or bool(cuts),
            cotangent=problem.cotangent,
        )
        try:
            maps += read(problem, target.call(call))
        except (TargetRaised, OutOfTime) as error:
            errors.append(error)
        # Scenes are kept for other targets of the scope, and maps for their words.
        problem.forget_tapes()
    if errors and not maps:
        raise errors[0]
    return sorted(maps, key=_rank)


def _rank(one: InfluenceMap) -> tuple[bool, bool, int]:
    """Return the rank of a map: a defect shows in the first ones most plainly.

    States hold what outputs show, and several calls what one call does. What is wrong
    on the way through a state, in a weight or in a denominator reaches all that
    follows from it.
    """
    ranks = (k for k, ends in enumerate(PLAIN) if one.tensor.endswith(ends))
    calls = one.problem.knobs.get("spans", 1)
    state = one.tensor in (*STATES, OF_KEYS)
    return state, calls > 1, next(ranks, len(PLAIN))


def output_map(target: Target, problem: Problem) -> InfluenceMap:
    """Return the weights of all tokens in all rows, of a problem of impulses.

    Raises
    ------
    TargetRaised, TargetDied
        If the target does not answer.
    """
    return maps_of(target, [problem], output_maps)[0]


@dataclass(frozen=True, eq=False)
class Table:
    """One result of a call: exact and likely values, places of its entries."""

    tensor: str
    problem: Problem
    measured: Real
    exact: Bounded
    likely: Real
    stored: str
    places: Mapping[str, Index]
    unaffected: Flags | None = None
    others: Mapping[str, Real] = field(default_factory=dict)

    @property
    def right(self) -> Flags:
        """True where an entry is within its bound."""
        with np.errstate(all="ignore"):
            close = abs(self.measured - self.exact.output) <= self.exact.bound
        return np.asarray(close)

    def of(self, chosen: Flags | bool = True) -> InfluenceMap:
        """Return the map of those of some entries that have a source."""
        exact, unaffected = self.exact.output, self.unaffected
        source = self.places.get("source", np.zeros(1, np.int64))
        chosen = np.broadcast_to((source != NOWHERE) & chosen, exact.shape)
        measured = self.measured[chosen]
        rounding = _half_ulp(measured, self.stored)
        return InfluenceMap(
            self.tensor,
            self.problem,
            measured,
            exact[chosen],
            self.exact.bound[chosen] + rounding,
            self.likely[chosen] + rounding,
            {
                name: np.broadcast_to(x, exact.shape)[chosen].astype(np.int64)
                for name, x in self.places.items()
            },
            None if unaffected is None else unaffected[chosen],
            {words: x[chosen] for words, x in self.others.items()},
        )


def shaped(measured: Any, shape: tuple[int, ...]) -> Real:
    """Return what came back, NaN if it has another shape."""
    if measured is None or measured.shape != shape:
        return np.full(shape, np.nan)
    return np.asarray(measured.astype(np.float64))


def _output(problem: Problem, reply: Reply) -> Table:
    """Return the table of an output."""
    measured = shaped(reply.output, problem.shape.of("bgtv"))
    truncates = problem.scope.contract.rounding == "truncation"
    exact = _solved(problem)
    likely = exact if truncates else _solved(problem, CONFIDENCE)
    stored = reply.dtype or problem.scope.output_dtype
    places = _places(problem, measured.shape)
    return Table("output", problem, measured, exact, likely.bound, stored, places)


def _solved(problem: Problem, confidence: float | None = None) -> Bounded:
    """Return the exact output; behind the last packed sequence, of any number."""
    if "packing" not in problem.knobs:
        return problem.solve(confidence=confidence)
    solved = exact_outputs(problem, confidence)
    rest = problem.length - solved.output.shape[-2]
    wide, largest = ((0, 0), (0, 0), (0, rest), (0, 0)), np.finfo(np.float64).max
    return Bounded(
        np.pad(solved.output, wide),
        np.pad(solved.bound, wide, constant_values=largest),
    )


def _places(problem: Problem, shape: tuple[int, ...]) -> dict[str, Index]:
    """Return the coordinates of the entries of an output, the token of each source."""
    sources = kept_sources(problem)
    batch, head, row, channel = np.ogrid[tuple(slice(n) for n in shape)]
    key = sources.tokens[batch, channel]
    places = {"row": row, **_of_key(problem, key), "batch": batch, "head": head}
    places["value channel"] = channel
    if sources.channels is not None:
        groups = shape[1] // sources.channels.shape[1]
        inside = np.clip(key, 0, sources.channels.shape[-1] - 1)
        channels = sources.channels[batch, head // groups, inside]
        places[sources.axis] = np.where(key == inside, channels, NOWHERE)
    return places


def _of_key(problem: Problem, key: Index) -> dict[str, Index]:
    """Return the token of a key, and its micro-step."""
    each = per_token(problem)
    if each == 1:
        return {"source": key}
    source = np.where(key < 0, key, key // each)
    return {"source": source, "micro-step": key % each}


def output_maps(problem: Problem, reply: Reply) -> Iterator[InfluenceMap]:
    """Yield the weights of the sources of a problem, as a target has returned them.

    A sequence that is cut has a map for each span. Weights of tokens of other packed
    sequences, which are zero, are maps of their own, and come first: a state that is
    kept too long spoils the other maps too.
    """
    if "cuts" in problem.knobs and not reply.state_kind:
        return
    table, parts = _output(problem, reply), Parts(problem)
    row, source = table.places["row"], table.places["source"]
    mine = parts.of(row)
    other = np.where(source < 0, mine, parts.of(source))
    _, end, span, sequence, _ = parts.table
    same, through = sequence[mine] == sequence[other], span[other] < span[mine]
    # Weights behind the last sequence are any numbers, wherever they come from.
    behind = sequence[mine] == parts.sequences
    own = parts.places(mine)
    places = {**table.places} | own | {"row": parts.seen(row, mine)}
    known = {name: places[name] for name in (*own, "head")}
    known |= parts.origin(mine, other)
    known |= {LAST_ROW: places["row"], FROM_THE_END: end[other] - 1 - source}
    rest = {x: places[x] for x in places if x not in ("source", "span")}
    places["source"] = parts.seen(source, mine)
    if "span" in own:
        places["earlier token"] = np.where(other < mine, source, NOWHERE)
        before = span[mine] - np.where(source < 0, -1, span[other])
        places[SPANS_BETWEEN] = np.maximum(before - 1, 0)
    for tensor, chosen, at in (
        (ACROSS, ~same & ~through & ~behind, known),
        (f"{ACROSS} through the initial state", ~same & through & ~behind, known),
        ("output", same & ~behind, places),
        ("output", behind, rest),
    ):
        named = replace(table, tensor=tensor, places=at)
        for k, part in enumerate(parts.problems()):
            inside = chosen & (mine == k)
            if inside.any():
                one = replace(named, problem=part)
                if at is known:
                    one = with_joined(one, inside, parts, (k, other), 2, Problem.solve)
                elif at is places and "sequence" in at and problem.scope.normalised:
                    one = _with_joined_denominators(one, inside, parts, k)
                whole = one.of(inside)
                yield whole.worst_of_each(*known) if at is known else whole


def _with_joined_denominators(
    table: Table, chosen: Flags, parts: Parts, part: int
) -> Table:
    """Return a table with what weights are over the sums of all sequences of a call.

    In joined sequences a token has the weights of its own sequence, and those of others
    beside them, over one sum.
    """
    span = parts.table[2]
    first = np.full(table.measured.shape, np.argmax(span == span[part]))
    joined = with_joined(table, chosen, parts, (part, first), 2, Problem.solve)
    return replace(table, others={OVER_JOINED: joined.others[JOINED]})


def with_joined(
    table: Table,
    chosen: Flags,
    parts: Parts,
    ends: tuple[int, Index],
    axis: int,
    solve: Callable[[Problem], Bounded],
) -> Table:
    """Return a table with what its entries of other sequences are in joined ones.

    Parameters
    ----------
    table : Table
        The weights of tokens of other sequences, or gradients that come from these.
    chosen : array of bool
        Some entries: only of wrong ones the others are computed.
    parts : Parts
        The parts of the problem.
    ends : (int, array)
        The part of the entries, and that of the other token of each.
    axis : int
        The axis of tokens.
    solve : callable
        Returns the result of a problem.
    """
    part, others = ends
    inside = np.arange(*parts.table[:2, part])
    joined, bound = np.full(table.measured.shape, np.nan), table.exact.bound.copy()
    each = joined.shape[axis] // parts.problem.length
    others = np.broadcast_to(others, joined.shape)
    for other in np.unique(others[chosen & ~table.right]).tolist():
        tokens, whole = parts.joined(part, other)
        solved, place = solve(whole), np.searchsorted(tokens, inside)
        # A bound that is not known would hide what leaks.
        rounding = np.fmin(solved.bound, BLURRED * abs(solved.output))
        here, there = (_along(axis, x, each) for x in (inside, place))
        told = (others == other)[here]
        joined[here] = np.where(told, solved.output[there], joined[here])
        bound[here] = np.where(told, rounding[there], bound[here])
    exact = replace(table.exact, bound=bound)
    return replace(table, exact=exact, others={JOINED: joined})


def _along(axis: int, tokens: Index, each: int) -> tuple[Any, ...]:
    """Return the index of some tokens, each of which has several entries of an axis."""
    return *(np.s_[:],) * axis, (tokens[:, None] * each + np.arange(each)).ravel()


def state_maps(problem: Problem, reply: Reply) -> Iterator[InfluenceMap]:
    """Yield the maps of the final state: memory, and normalizer if there is one."""
    precisions = problem.scope.contract.precisions(problem.scope.dtype)
    dtypes = (precisions.state, precisions.normalizer)
    states = reply.states or ()
    exact = problem.solve_state() if states else ()
    exact = kept_over(problem.scope.operator, states, exact)
    for tensor, state, bounded, dtype in zip(
        STATES, states, exact, dtypes, strict=False
    ):
        measured = shaped(state, bounded.output.shape)
        stored = dtype or precisions.accumulator
        places = _state_places(problem, tensor, measured.shape)
        # That of a call which begins with a state, or of one without.
        places["span"] = np.array(len(problem.knobs.get("cuts", ())))
        likely = bounded.bound
        table = Table(tensor, problem, measured, bounded, likely, stored, places)
        yield table.of()
        if problem.scope.operator.keeps_keys and tensor == STATES[0]:
            keys = _key_columns(problem, places, measured.shape)
            yield replace(table, tensor=OF_KEYS, places=keys).of()


def _state_places(
    problem: Problem, tensor: str, shape: tuple[int, ...]
) -> dict[str, Index]:
    """Return the coordinates of the entries of a state."""
    axes = problem.scope.operator.state[STATES.index(tensor)]
    grid = np.ogrid[tuple(slice(n) for n in shape)]
    places: dict[str, Index] = {"batch": grid[0], "head": grid[1]}
    places |= {
        AXES.get(axis, "feature"): index
        for axis, index in zip(axes, grid[2:], strict=True)
        if axis not in ("1", "k+v")
    }
    columns = grid[-1]
    if axes[-1] == "k+v":
        columns = columns - problem.shape.key_dim
        places["value channel"] = columns
    if axes[-1] in ("v", "k+v") and tensor == STATES[0]:
        tokens = kept_sources(problem).tokens
        own = tokens[places["batch"], np.maximum(columns, 0)]
        places |= _of_key(problem, np.where(columns < 0, NOWHERE, own))
    return places


def _key_columns(
    problem: Problem, places: Mapping[str, Index], shape: tuple[int, ...]
) -> dict[str, Index]:
    """Return the coordinates of the columns of keys in a memory.

    A column belongs to the token whose key alone has that channel, if there is one.
    """
    # One more token has no key: there may be no other.
    there = np.pad(problem.key != 0, ((0, 0), (0, 0), (0, 1), (0, 0)))
    alone = np.where(there.sum(-2) == 1, there.argmax(-2), NOWHERE)
    column = np.arange(shape[-1])
    head = places["head"] // (shape[1] // alone.shape[1])
    inside = column.clip(0, alone.shape[-1] - 1)
    token = np.where(column == inside, alone[places["batch"], head, inside], NOWHERE)
    others = {name: x for name, x in places.items() if name != "value channel"}
    return {**others, **_of_key(problem, token)}


def packed_maps(problem: Problem, reply: Reply) -> Iterator[InfluenceMap]:
    """Yield the maps of packed sequences: their outputs and their final states."""
    yield from output_maps(problem, reply)
    packing: Packing = problem.knobs["packing"]
    parts = zip(packing.tokens(), packed_sequences(problem), strict=True)
    for number, (rows, whole) in enumerate(parts):
        sources = kept_sources(problem, rows)
        alone = whole.told(sources=sources, sequences=len(packing.lengths[0]))
        states = tuple(x[number : number + 1] for x in reply.states or ())
        for one in state_maps(alone, replace(reply, states=states)):
            here = {"sequence": number, LAST_CALL: packing.lengths[-1][number]}
            known = {x: np.full(one.exact.shape, n) for x, n in here.items()}
            yield replace(one, coordinates={**one.coordinates, **known})


def _half_ulp(x: Real, dtype: str) -> Real:
    """Return the error of storing numbers in a dtype."""
    if not dtype or dtype == "float64":
        return np.zeros(x.shape)
    with np.errstate(all="ignore"):
        spacing = np.spacing(abs(x).astype(numpy_dtype(dtype))).astype(np.float64)
    return np.asarray(np.nan_to_num(spacing / 2, nan=0.0, posinf=0.0))
