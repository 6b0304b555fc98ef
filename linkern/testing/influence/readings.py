"""Readings: influence maps from the replies to scenes.

Rows and sources are counted from the first token of the span or of the packed sequence
that a row is in. Earlier tokens reach it through a state alone: their source is
`INITIAL_STATE`.
"""

from collections.abc import Iterator, Mapping
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
    "asked",
    "half_ulp",
    "of_output",
    "output_map",
    "output_maps",
    "packed_maps",
    "span_maps",
    "state_maps",
]

# Of independent errors, hardly one in a million is beyond.
CONFIDENCE = 5.0
STATES = ("final state", "final normalizer")


def asked(target: Target, problem: Problem, **options: Any) -> Reply | None:
    """Call a target; return None if it raises.

    `options` are fields of `Call`.
    """
    call = Call(problem.inputs, scale=problem.scale, **options)
    try:
        return target.call(call)
    except TargetRaised:
        return None


def output_map(target: Target, problem: Problem) -> InfluenceMap:
    """Return the weights of all tokens in all rows, of a problem of impulses.

    Raises
    ------
    TargetRaised, TargetDied
        If the target does not answer.
    """
    reply = target.call(Call(problem.inputs, scale=problem.scale))
    return of_output(problem, reply)


def output_maps(
    target: Target, problems: tuple[Problem, ...], **options: Any
) -> list[InfluenceMap]:
    """Return the maps of those problems that a target answers.

    Raises
    ------
    TargetRaised
        If it answers none.
    """
    replies = [(problem, asked(target, problem, **options)) for problem in problems]
    answered = [(problem, reply) for problem, reply in replies if reply is not None]
    if problems and not answered:
        return [output_map(target, problems[0])]
    return [of_output(problem, reply) for problem, reply in answered]


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

    def of(self, chosen: Flags) -> InfluenceMap:
        """Return the map of some entries."""
        rounding = half_ulp(self.measured[chosen], self.stored)
        exact = self.exact.output
        bound, likely = (
            np.broadcast_to(x, exact.shape)[chosen] + rounding
            for x in (self.exact.bound, self.likely)
        )
        return InfluenceMap(
            self.tensor,
            self.problem,
            self.measured[chosen],
            exact[chosen],
            bound,
            likely,
            {
                name: np.broadcast_to(x, exact.shape)[chosen].astype(np.int64)
                for name, x in self.places.items()
            },
        )


def _measured(reply: Reply, shape: tuple[int, ...]) -> Real:
    """Return the output of a reply, NaN if it has another shape."""
    if reply.output is None or reply.output.shape != shape:
        return np.full(shape, np.nan)
    return np.asarray(reply.output.astype(np.float64))


def _output_table(
    problem: Problem, reply: Reply, measured: Real | None = None
) -> _Table:
    """Return the table of an output, or of a part of it that was cut out."""
    exact = problem.solve()
    truncates = problem.scope.contract.rounding == "truncation"
    likely = exact if truncates else problem.solve(confidence=CONFIDENCE)
    return _Table(
        "output",
        problem,
        _measured(reply, exact.output.shape) if measured is None else measured,
        exact,
        likely.bound,
        reply.dtype or problem.scope.output_dtype,
        _places(problem, exact.output.shape),
    )


def _places(problem: Problem, shape: tuple[int, ...]) -> dict[str, Index]:
    """Return the coordinates of the entries of an output, the token of each source."""
    sources = kept_sources(problem)
    batch, head, row, channel = np.ogrid[tuple(slice(n) for n in shape)]
    key = sources.tokens[batch, channel]
    places: dict[str, Index] = {
        "row": row,
        **_of_key(problem, key),
        "batch": batch,
        "head": head,
        "value channel": channel,
    }
    if sources.channels is not None:
        groups = shape[1] // sources.channels.shape[1]
        last = sources.channels.shape[-1] - 1
        inside = np.clip(key, 0, last)
        channels = sources.channels[batch, head // groups, inside]
        places["key channel"] = np.where(key == inside, channels, NOWHERE)
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


def _present(table: _Table) -> Flags:
    """Return the entries that have a source."""
    shape = table.exact.output.shape
    return np.broadcast_to(table.places["source"] != NOWHERE, shape)


def of_output(problem: Problem, reply: Reply) -> InfluenceMap:
    """Return the weights of the sources of a problem, as a target has returned them."""
    table = _output_table(problem, reply)
    return table.of(_present(table))


def span_maps(problem: Problem, reply: Reply) -> Iterator[InfluenceMap]:
    """Yield a map for each span of a sequence that was cut, but the first.

    The knob ``cuts`` holds the first tokens of the spans. Spans of one token, behind a
    prompt, are one map, in which rows and sources are counted from the first token.
    """
    table = _output_table(problem, reply)
    present, row = _present(table), table.places["row"]
    edges = (0, *problem.knobs["cuts"], problem.length)
    if len(edges) > 3 and np.diff(edges[1:]).max() == 1:
        span = np.searchsorted(edges[1:], row, side="right")
        yield replace(table, places={**table.places, "span": span}).of(present)
        return
    for number, (first, last) in enumerate(pairwise(edges)):
        if number == 0:
            continue
        source = table.places["source"]
        inside = np.where(source < first, INITIAL_STATE, source - first)
        places = {**table.places, "row": row - first, "source": inside}
        places["span"] = np.asarray(number)
        places["earlier token"] = np.where(source < first, source, NOWHERE)
        alone = problem.span(first, last).told(**_of_span(problem, first, last))
        changed = replace(table, problem=alone, places=places)
        yield changed.of(present & (row >= first) & (row < last))


def _of_span(problem: Problem, first: int, last: int) -> dict[str, Any]:
    """Return the knobs of the problem of a span."""
    sources, each = kept_sources(problem), _per_token(problem)
    channels = sources.channels
    if channels is not None:
        channels = channels[..., first * each : last * each]
    tokens = np.where(sources.tokens < first * each, NOWHERE, sources.tokens)
    tokens = np.where(tokens == NOWHERE, NOWHERE, tokens - first * each)
    return {"cuts": (), "sources": Sources(tokens, channels)}


def state_maps(problem: Problem, reply: Reply) -> list[InfluenceMap]:
    """Return the maps of the final state: memory, and normalizer if there is one."""
    maps = []
    precisions = problem.scope.contract.precisions(problem.scope.dtype)
    dtypes = (precisions.state, precisions.normalizer)
    exact = problem.solve_state() if reply.states else ()
    for tensor, got, bounded, dtype in zip(
        STATES, reply.states or (), exact, dtypes, strict=False
    ):
        shape = bounded.output.shape
        wide = got.astype(np.float64)
        measured = wide if wide.shape == shape else np.full(shape, np.nan)
        stored = dtype or precisions.accumulator
        places = _state_places(problem, tensor, shape)
        likely = bounded.bound
        table = _Table(tensor, problem, measured, bounded, likely, stored, places)
        source = places.get("source", np.zeros(1, np.int64))
        maps.append(table.of(np.broadcast_to(source != NOWHERE, shape)))
    return maps


def _state_places(
    problem: Problem, tensor: str, shape: tuple[int, ...]
) -> dict[str, Index]:
    """Return the coordinates of the entries of a state."""
    axes = problem.scope.operator.state[STATES.index(tensor)]
    grid = np.ogrid[tuple(slice(n) for n in shape)]
    places: dict[str, Index] = {"batch": grid[0], "head": grid[1]}
    names = {"k": "key channel", "v": "value channel", "m": "slot", "l": "level"}
    places |= {
        names.get(axis, "feature"): index
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

    Sources in earlier sequences count as `INITIAL_STATE`, sources in later ones as
    tokens behind the end: their weights are zero.
    """
    packing: Packing = problem.knobs["packing"]
    measured = _measured(reply, problem.shape.of("bgtv"))
    tokens, each = kept_sources(problem).tokens, _per_token(problem)
    parts = zip(packing.tokens(), packed_sequences(problem), strict=True)
    for number, (rows, alone) in enumerate(parts):
        own = np.isin(tokens // each, rows)
        inside = np.searchsorted(rows, tokens // each) * each + tokens % each
        ahead = tokens // each > rows.max(initial=NOWHERE)
        outside = np.where(ahead, len(rows) * each, INITIAL_STATE)
        inside = np.where(own, inside, outside)
        inside = np.where(tokens == NOWHERE, NOWHERE, inside)
        one = alone.told(sources=Sources(inside, _channels(problem, rows)))
        if len(rows):
            whole = _output_table(one, reply, measured[..., rows, :])
            places = {**whole.places, "sequence": np.asarray(number)}
            if packing.cuts:
                span = np.searchsorted(packing.ends, rows, side="right")
                places["span"] = span[:, None]
            table = replace(whole, places=places)
            yield table.of(_present(table))
        states = tuple(x[number : number + 1] for x in reply.states or ())
        for one_map in state_maps(one, replace(reply, states=states)):
            size = one_map.exact.shape
            sequence = {"sequence": np.full(size, number)}
            yield replace(one_map, coordinates={**one_map.coordinates, **sequence})
    if packing.ends[-1] < problem.length:
        yield _behind(problem, reply, measured)


def _behind(problem: Problem, reply: Reply, measured: Real) -> InfluenceMap:
    """Return the map of rows behind the last sequence: any numbers, but no NaN."""
    packing: Packing = problem.knobs["packing"]
    first = packing.ends[-1]
    rest = measured[..., first:, :]
    any_number = np.full(rest.shape, np.finfo(np.float64).max)
    exact = Bounded(np.zeros(rest.shape), any_number)
    places = _places(problem, rest.shape)
    places["sequence"] = np.asarray(len(packing.lengths[0]))
    table = _Table("output", problem, rest, exact, any_number, reply.dtype, places)
    return table.of(_present(table))


def _channels(problem: Problem, rows: Index) -> Index | None:
    """Return the one channel of each key of some tokens, where it has one."""
    channels, each = kept_sources(problem).channels, _per_token(problem)
    keys = (rows[:, None] * each + np.arange(each)).ravel()
    return None if channels is None else channels[..., keys]


def half_ulp(x: Real, dtype: str) -> Real:
    """Return the error of storing numbers in a dtype."""
    if not dtype or dtype == "float64":
        return np.zeros(x.shape)
    with np.errstate(all="ignore"):
        spacing = np.spacing(abs(x).astype(numpy_dtype(dtype))).astype(np.float64)
    return np.asarray(np.nan_to_num(spacing / 2, nan=0.0, posinf=0.0))
