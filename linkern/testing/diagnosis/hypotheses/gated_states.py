"""Deviations of the family in what one span leaves the next, or one packed sequence."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import FAMILY, Bounded
from linkern.testing.diagnosis.hypotheses.evidence import Evidence
from linkern.testing.diagnosis.hypotheses.gated_questions import separately
from linkern.testing.diagnosis.hypotheses.rules import (
    Reading,
    consulted,
    predicted,
)
from linkern.testing.diagnosis.hypotheses.variant import Deviation
from linkern.testing.problems.problem import Problem

__all__ = ["handed_over", "left_in_packs", "without_gate"]

Real = NDArray[np.float64]
State = tuple[Real, ...]
# From the span and the state before it to the state that the next one starts from.
Handover = Callable[[Problem, State | None], State | None]


def _after(problem: Problem, state: State | None) -> State:
    """Return what is left after a span, as it should be."""
    asked = consulted(problem)
    operator = FAMILY[str(problem.scope.operator.family)]
    return operator.evaluate(asked.meant, asked.scale, state).state


def _walked(problem: Problem, handover: Handover) -> Bounded:
    """Return the outputs of spans that start from what is handed over."""
    cuts = problem.knobs["cuts"]
    operator = FAMILY[str(problem.scope.operator.family)]
    state: State | None = None
    outputs, bounds = [], []
    for first, last in pairwise((0, *cuts, problem.length)):
        span = problem.span(first, last)
        asked = consulted(span)
        found, _ = operator.bounded(
            asked.meant, asked.scale, asked.precisions, state=state
        )
        found = asked.widened(found)
        outputs.append(found.output)
        bounds.append(found.bound)
        state = handover(span, state)
    # What is handed over has errors of its own, as that of the operator has.
    bound = np.concatenate(bounds, axis=-2) + problem.solve().bound
    return Bounded(np.concatenate(outputs, axis=-2), bound)


def handed_over(evidence: Evidence) -> Iterator[Deviation]:
    """Yield states that are ignored, exchanged, narrow, or lack tokens."""
    del evidence
    yield _handed("state_ignored", "a state ignored", _ignored)
    yield Deviation(
        "state_not_decayed_by_first_token",
        "a state that the first token after it does not decay",
        lambda problem: predicted(problem, partial(_open_at, problem.knobs["cuts"])),
    )
    changes: tuple[tuple[str, str, Callable[[Real], Real]], ...] = (
        ("state_transposed", "the memory of a state transposed", _transposed),
        ("state_of_first_head", "the state of the first head", _first_head),
        ("state_scaled", "a state times 2", lambda x: 2 * x),
        ("state_scaled", "a state times 0.5", lambda x: x / 2),
        ("state_rounded", "a state rounded to bfloat16 when returned", _bfloat16),
        ("state_rounded", "a state rounded to float16 when returned", _float16),
    )
    for name, phrase, change in changes:
        yield _handed(name, phrase, partial(_changed, change=change))
    for chunk in (2, 4, 8, 16, 32, 64):
        phrase = f"a state without the tokens after the last full chunk of {chunk}"
        for least in (chunk, 0):
            for lacks in (_without_tail, _without_writes):
                handover = partial(lacks, chunk=chunk, least=least)
                yield _handed("state_lacks_tail", phrase, handover)


def _ignored(span: Problem, state: State | None) -> None:
    del span, state


def _handed(name: str, phrase: str, handover: Handover) -> Deviation:
    return Deviation(name, phrase, lambda problem: _walked(problem, handover))


def _open_at(cuts: tuple[int, ...], reading: Reading) -> Reading | None:
    g = reading.given("log_decay")
    if g is None:
        return None
    g = np.array(g)
    g[:, :, list(cuts)] = 0
    return reading.with_inputs(log_decay=g)


def _changed(
    span: Problem, state: State | None, change: Callable[[Real], Real]
) -> State:
    memory, *rest = _after(span, state)
    return (change(memory), *rest)


def _transposed(memory: Real) -> Real:
    square = memory.shape[-1] == memory.shape[-2]
    return np.swapaxes(memory, -1, -2) if square else memory


def _first_head(memory: Real) -> Real:
    return np.repeat(memory[:, :1], memory.shape[1], axis=1)


def _bfloat16(memory: Real) -> Real:
    mantissa, exponent = np.frexp(memory)
    return np.ldexp(np.round(mantissa * 2.0**8) / 2.0**8, exponent)


def _float16(memory: Real) -> Real:
    return memory.astype(np.float16).astype(np.float64)


def _without_tail(
    span: Problem, state: State | None, chunk: int, least: int
) -> State | None:
    full = span.length // chunk * chunk if span.length >= least else span.length
    return _after(span.span(0, full), state) if full else state


def _without_writes(
    span: Problem, state: State | None, chunk: int, least: int
) -> State | None:
    """Let the tail decay the memory, but neither write to it nor erase."""
    full = span.length // chunk * chunk if span.length >= least else span.length
    changed = {}
    for name in {"key", "removal_key", "a"} & {*span.inputs}:
        x = span.inputs[name].copy()
        x[..., full * (x.shape[-2] // max(span.length, 1)) :, :] = 0
        changed[name] = x
    return _after(span.with_inputs(**changed), state)


# -- gates that are left out


def without_gate(evidence: Evidence) -> Iterator[Deviation]:
    """Yield what a gate that is not given may stand for instead."""
    if evidence.scope.operator.erases:
        yield Deviation(
            "no_erase_without_gate",
            "nothing erased where a gate is left out",
            lambda problem: predicted(problem, _adds_only),
        )
    for number in (-0.5, -1.0, np.log(0.5)):
        yield Deviation(
            "missing_gate_not_neutral",
            f"a log-decay of {number:.3g} where it is left out",
            partial(_filled, name="log_decay", number=number),
        )
    for number in (0.0, 0.5):
        yield Deviation(
            "missing_gate_not_neutral",
            f"a beta of {number:g} where it is left out",
            partial(_filled, name="beta", number=number),
        )


def _adds_only(reading: Reading) -> Reading | None:
    if reading.given("log_decay") is not None:
        return reading
    beta, key = reading.given("beta"), reading.of("key")
    groups = reading.of("value").shape[-3] // key.shape[-3]
    key = np.repeat(key, groups, axis=-3)
    inputs = {name: reading.given(name) for name in ("query", "value")}
    inputs["query"] = np.repeat(reading.of("query"), groups, axis=-3)
    inputs["key"] = key if beta is None else beta[..., None] * key
    return Reading("simple_gla", inputs, reading.scale)


def _filled(problem: Problem, name: str, number: float) -> Bounded | None:
    if name not in problem.scope.operator.names:
        return None

    def rule(reading: Reading) -> Reading:
        if reading.given(name) is not None:
            return reading
        sizes = problem.sizes
        axes = problem.scope.operator.input(name).axes
        shape = tuple(sizes[letter] for letter in axes)
        return reading.with_inputs(**{name: np.full(shape, number)})

    return predicted(problem, rule)


# -- packed sequences


def left_in_packs(evidence: Evidence) -> Iterator[Deviation]:
    """Yield packed sequences that begin elsewhere than they should."""
    del evidence
    for name, phrase, edges in _edges():
        yield Deviation(name, phrase, partial(_packed, edges=edges))


Edges = Callable[[tuple[int, ...]], tuple[int, ...]]


def _edges() -> Iterator[tuple[str, str, Edges]]:
    yield "packed_not_reset", "packed sequences taken for one", lambda e: (e[0], e[-1])
    after = "packed sequences that go on after an empty one"
    yield "packed_goes_on_after_empty", after, _merged_at_empty
    for chunk in (8, 16, 32, 64, 128):
        of = f"packed sequences that begin at multiples of {chunk} only"
        yield "packed_reset_on_chunk_grid", of, partial(_on_grid, chunk)


def _merged_at_empty(edges: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(edge for edge in edges if edges.count(edge) == 1)


def _on_grid(chunk: int, edges: tuple[int, ...]) -> tuple[int, ...]:
    starts = {-(-edge // chunk) * chunk for edge in edges[1:-1]}
    inner = sorted(edge for edge in starts if edges[0] < edge < edges[-1])
    return (edges[0], *inner, edges[-1])


def _packed(problem: Problem, edges: Callable[[Any], tuple[int, ...]]) -> Bounded:
    return separately(problem, edges(problem.knobs["segments"]))
