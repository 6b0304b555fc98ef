"""Readings: influence maps from the replies to scenes.

Rows and sources are counted from the first token of the span or of the packed sequence
that a row is in. Earlier tokens of the sequence reach it through a state alone: their
source is `INITIAL_STATE`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from linkern.oracle import Bounded
from linkern.testing.errors import TargetRaised
from linkern.testing.influence.maps import (
    INITIAL_STATE,
    Flags,
    Index,
    InfluenceMap,
    Real,
)
from linkern.testing.influence.scenes import NOWHERE, Sources, kept_sources
from linkern.testing.problems.packing import Packing, packed_sequences
from linkern.testing.problems.problem import Problem
from linkern.testing.target.frameworks import numpy_dtype
from linkern.testing.target.process import Target
from linkern.testing.target.protocol import Call, Reply

__all__ = [
    "CONFIDENCE",
    "Reading",
    "half_ulp",
    "maps_of",
    "output_map",
    "output_maps",
    "packed_maps",
    "span_maps",
    "state_maps",
]

Reading = Callable[[Problem, Reply], Iterable[InfluenceMap]]
# Of independent errors, hardly one in a million is beyond.
CONFIDENCE = 5.0
STATES = ("final state", "final normalizer")
AXES = {"k": "key channel", "v": "value channel", "m": "slot", "l": "level"}


def maps_of(
    target: Target,
    problems: Iterable[Problem],
    read: Reading,
    *,
    wants_state: bool = False,
) -> list[InfluenceMap]:
    """Return the maps of those problems that a target answers.

    The knobs ``cuts`` and ``packing`` of a problem say how it is called.

    Raises
    ------
    TargetRaised
        If it answers none.
    """
    maps: list[InfluenceMap] = []
    raised: list[TargetRaised | None] = []
    for problem in problems:
        packing: Packing | None = problem.knobs.get("packing")
        call = Call(
            problem.inputs,
            scale=problem.scale,
            cuts=packing.cuts if packing else problem.knobs.get("cuts", ()),
            segments=packing.segments if packing else (),
            wants_state=wants_state,
        )
        try:
            maps += read(problem, target.call(call))
        except TargetRaised as error:
            raised.append(error)
        else:
            raised.append(None)
    if raised and raised[0] is not None and all(raised):
        raise raised[0]
    return maps


def output_map(target: Target, problem: Problem) -> InfluenceMap:
    """Return the weights of all tokens in all rows, of a problem of impulses.

    Raises
    ------
    TargetRaised, TargetDied
        If the target does not answer.
    """
    return maps_of(target, [problem], output_maps)[0]


@dataclass(frozen=True, eq=False)
class _Table:
    """One result of a call: exact and likely values, places of its entries."""

    tensor: str
    problem: Problem
    measured: Real
    exact: Bounded
    likely: Real
    stored: str
    places: Mapping[str, Index]

    def of(self, chosen: Flags | bool = True) -> InfluenceMap:
        """Return the map of those of some entries that have a source."""
        exact = self.exact.output
        source = self.places.get("source", np.zeros(1, np.int64))
        chosen = np.broadcast_to((source != NOWHERE) & chosen, exact.shape)
        rounding = half_ulp(self.measured[chosen], self.stored)
        bound, likely = (
            np.broadcast_to(x, exact.shape)[chosen] + rounding
            for x in (self.exact.bound, self.likely)
        )
        places = {
            name: np.broadcast_to(x, exact.shape)[chosen].astype(np.int64)
            for name, x in self.places.items()
        }
        measured = self.measured[chosen]
        return InfluenceMap(
            self.tensor, self.problem, measured, exact[chosen], bound, likely, places
        )


def _shaped(measured: Any, shape: tuple[int, ...]) -> Real:
    """Return what came back, NaN if it has another shape."""
    if measured is None or measured.shape != shape:
        return np.full(shape, np.nan)
    return np.asarray(measured.astype(np.float64))


def _output(problem: Problem, measured: Real, dtype: str) -> _Table:
    """Return the table of an output."""
    exact = problem.solve()
    truncates = problem.scope.contract.rounding == "truncation"
    likely = exact if truncates else problem.solve(confidence=CONFIDENCE)
    stored = dtype or problem.scope.output_dtype
    places = _places(problem, exact.output.shape)
    return _Table("output", problem, measured, exact, likely.bound, stored, places)


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
    each = _per_token(problem)
    if each == 1:
        return {"source": key}
    source = np.where(key < 0, key, key // each)
    return {"source": source, "micro-step": key % each}


def _per_token(problem: Problem) -> int:
    """Return the number of keys of each token."""
    if not problem.scope.operator.micro_steps:
        return 1
    return problem.shape.keys // max(problem.length, 1)


def output_maps(problem: Problem, reply: Reply) -> Iterator[InfluenceMap]:
    """Yield the weights of the sources of a problem, as a target has returned them."""
    measured = _shaped(reply.output, problem.shape.of("bgtv"))
    yield _output(problem, measured, reply.dtype).of()


def span_maps(problem: Problem, reply: Reply) -> Iterator[InfluenceMap]:
    """Yield a map for each span of a sequence that was cut.

    The knob ``cuts`` holds the first tokens of the spans.
    """
    if reply.state_kind:
        measured = _shaped(reply.output, problem.shape.of("bgtv"))
        table = _output(problem, measured, reply.dtype)
        yield from _spans(table, (0, *problem.knobs["cuts"], problem.length))


def _spans(table: _Table, edges: tuple[int, ...]) -> Iterator[InfluenceMap]:
    """Yield the map of each span of a sequence that has tokens."""
    row, source = table.places["row"], table.places["source"]
    for number, (start, end) in enumerate(pairwise(edges)):
        if start == end:
            continue
        earlier = source < start
        places = {
            **table.places,
            "row": row - start,
            "source": np.where(earlier, INITIAL_STATE, source - start),
            "earlier token": np.where(earlier, source, NOWHERE),
            "span": np.asarray(number),
        }
        places["source"] = np.where(source == NOWHERE, NOWHERE, places["source"])
        sources = _kept(table.problem, np.arange(start, end))
        alone = table.problem.span(start, end)
        alone = alone.told(cuts=(), spans=len(edges) - 1, sources=sources)
        part = replace(table, problem=alone, places=places)
        yield part.of((row >= start) & (row < end))


def _kept(problem: Problem, rows: Index) -> Sources:
    """Return the impulses of some tokens, counted from the first of them."""
    sources, each = kept_sources(problem), _per_token(problem)
    keys = (rows[:, None] * each + np.arange(each)).ravel()
    inside = np.where(np.isin(sources.tokens, keys), sources.tokens, NOWHERE)
    tokens = np.where(inside < 0, NOWHERE, np.searchsorted(keys, inside))
    channels = sources.channels
    kept = None if channels is None else channels[..., keys]
    return replace(sources, tokens=tokens, channels=kept)


def state_maps(problem: Problem, reply: Reply) -> Iterator[InfluenceMap]:
    """Yield the maps of the final state: memory, and normalizer if there is one."""
    precisions = problem.scope.contract.precisions(problem.scope.dtype)
    dtypes = (precisions.state, precisions.normalizer)
    exact = problem.solve_state() if reply.states else ()
    for tensor, state, bounded, dtype in zip(
        STATES, reply.states or (), exact, dtypes, strict=False
    ):
        measured = _shaped(state, bounded.output.shape)
        stored = dtype or precisions.accumulator
        places = _state_places(problem, tensor, measured.shape)
        likely = bounded.bound
        table = _Table(tensor, problem, measured, bounded, likely, stored, places)
        yield table.of()


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


def packed_maps(problem: Problem, reply: Reply) -> Iterator[InfluenceMap]:
    """Yield the maps of each packed sequence: its outputs and its final state.

    The weights of tokens of other sequences, which are zero, are maps of their own, and
    come first: a state that is kept too long spoils the other maps too.
    """
    packing: Packing = problem.knobs["packing"]
    measured = _shaped(reply.output, problem.shape.of("bgtv"))
    parts = zip(packing.tokens(), packed_sequences(problem), strict=True)
    own: list[InfluenceMap] = []
    for number, (rows, whole) in enumerate(parts):
        alone = whole.told(
            sources=_kept(problem, rows), sequences=len(packing.lengths[0])
        )
        sequence = {"sequence": np.asarray(number)}
        if len(rows):
            table = _output(alone, measured[..., rows, :], reply.dtype)
            table = replace(table, places={**table.places, **sequence})
            yield _across(problem, table, rows)
            own += _spans(table, _edges(packing, rows))
        states = tuple(x[number : number + 1] for x in reply.states or ())
        for one in state_maps(alone, replace(reply, states=states)):
            size = np.full(one.exact.shape, number)
            own.append(replace(one, coordinates={**one.coordinates, "sequence": size}))
    if packing.ends[-1] < problem.length:
        own.append(_behind(problem, reply, measured))
    yield from own


def _edges(packing: Packing, rows: Index) -> tuple[int, ...]:
    """Return the tokens of a sequence that calls begin with, and its end."""
    inner = np.searchsorted(rows, packing.cuts)
    return (0, *(int(n) for n in inner), len(rows))


def _across(problem: Problem, table: _Table, rows: Index) -> InfluenceMap:
    """Return the largest weight in each head of tokens of other sequences."""
    tokens = kept_sources(problem).tokens
    other = (tokens >= 0) & ~np.isin(tokens // _per_token(problem), rows)
    places = {name: table.places[name] for name in ("head", "sequence")}
    apart = replace(table, tensor="output across sequences", places=places)
    every = apart.of(other[:, None, None, :])
    order = np.lexsort((-every.error, every.coordinates["head"]))
    _, first = np.unique(every.coordinates["head"][order], return_index=True)
    return every.part(order[first])


def _behind(problem: Problem, reply: Reply, measured: Real) -> InfluenceMap:
    """Return the map of rows behind the last sequence: any numbers, but no NaN."""
    packing: Packing = problem.knobs["packing"]
    rest = measured[..., packing.ends[-1] :, :]
    any_number = np.full(rest.shape, np.finfo(np.float64).max)
    exact = Bounded(np.zeros(rest.shape), any_number)
    places, count = _places(problem, rest.shape), len(packing.lengths[0])
    places["sequence"] = np.asarray(count)
    made = problem.told(sequences=count)
    table = _Table("output", made, rest, exact, any_number, reply.dtype, places)
    return table.of()


def half_ulp(x: Real, dtype: str) -> Real:
    """Return the error of storing numbers in a dtype."""
    if not dtype or dtype == "float64":
        return np.zeros(x.shape)
    with np.errstate(all="ignore"):
        spacing = np.spacing(abs(x).astype(numpy_dtype(dtype))).astype(np.float64)
    return np.asarray(np.nan_to_num(spacing / 2, nan=0.0, posinf=0.0))
