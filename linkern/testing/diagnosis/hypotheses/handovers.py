"""States that are wrong when one call hands them over to the next."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import Bounded
from linkern.testing.diagnosis.hypotheses.emulation import Stages
from linkern.testing.diagnosis.hypotheses.evidence import Evidence
from linkern.testing.diagnosis.hypotheses.finishes import Move, moved
from linkern.testing.diagnosis.hypotheses.measuring import (
    decimals,
    fitted,
    geometric,
    spelt,
)
from linkern.testing.diagnosis.hypotheses.pairs import (
    Condition,
    Pairs,
    Real,
    Weights,
    seen,
)
from linkern.testing.diagnosis.hypotheses.roundings import formats, staged
from linkern.testing.diagnosis.hypotheses.variant import Deviation, variant
from linkern.testing.problems.problem import Problem

__all__ = ["exchanged", "lost", "narrowed"]


def _times(times: Callable[[Pairs], NDArray[Any] | float]) -> Weights:
    """Let what is handed over count otherwise."""
    return lambda pairs: np.where(pairs.handed > 0, times(pairs), pairs.seen)


def _of_parts(name: str, phrase: str, weights: Weights) -> Iterator[Deviation]:
    """Yield a defect of the whole state, of its memory and of its normalizer."""
    yield variant(name, f"a state {phrase}", numerator=weights)
    yield variant(
        f"memory_{name.removeprefix('state_')}",
        f"the memory of a state {phrase}",
        numerator=weights,
        denominator=seen,
    )
    yield variant(
        f"normalizer_{name.removeprefix('state_')}",
        f"the normalizer of a state {phrase}",
        denominator=weights,
    )


def lost(evidence: Evidence) -> Iterator[Deviation]:
    """Yield states that are ignored, that have a factor, or that lack tokens."""
    yield from _of_parts("state_ignored", "ignored", _times(lambda _: 0.0))
    yield from _of_parts(
        "state_lacks_last_token",
        "without its last token",
        _times(lambda p: _left(p, 1) > 0),
    )
    for chunk in evidence.all_sizes:
        for least, where in ((chunk, ""), (0, ", shorter sequences included")):
            yield from _of_parts(
                "state_lacks_tail",
                f"without the tokens after the last full chunk of {chunk}{where}",
                _times(_full_chunks(chunk, least)),
            )
    for part in range(3):
        family = partial(_scaled, part=part)
        factor = fitted(evidence, family, geometric(-2, 2))
        yield from map(family, decimals(factor) if factor else ())


def _scaled(factor: float, part: int) -> Deviation:
    weights = _times(lambda pairs: factor ** np.maximum(pairs.handed, 0))
    phrase = f"times {spelt(factor)}"
    return list(_of_parts("state_scaled", phrase, weights))[part]


def _spans(pairs: Pairs) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the start and the end of the span of each key, ``(1, S)``."""
    edges = np.asarray((0, *pairs.cuts, pairs.last + 1))
    span = np.searchsorted(pairs.cuts, pairs.key, side="right")
    return edges[span], edges[span + 1]


def _left(pairs: Pairs, tokens: int) -> NDArray[np.int64]:
    """Return how many tokens come after each key in its span, less `tokens` - 1."""
    _, end = _spans(pairs)
    return np.asarray(end - pairs.key - tokens)


def _full_chunks(chunk: int, least: int) -> Condition:
    """Return which keys are in a full chunk of a span of at least that many tokens."""

    def condition(pairs: Pairs) -> NDArray[np.bool_]:
        start, end = _spans(pairs)
        full = (end - start) // chunk * chunk
        return np.asarray((pairs.key - start < full) | (end - start < least))

    return condition


def exchanged(evidence: Evidence) -> Iterator[Deviation]:
    """Yield memories that are transposed, or of another head."""

    def locally(pairs: Pairs) -> NDArray[np.bool_]:
        return np.asarray(pairs.seen & (pairs.handed == 0))

    whole: dict[str, Any] = {"numerator": locally, "denominator": seen}
    yield Deviation(
        "state_transposed",
        "the memory of a state transposed",
        lambda problem: _transposed(problem, variant("", "", handed=_swapped, **whole)),
        silent="on reals",
    )
    orders: tuple[tuple[str, Move], ...] = (
        ("the first head", lambda x: np.broadcast_to(x[:, :1], x.shape)),
        ("the next head", lambda x: np.roll(x, -1, axis=1)),
        ("the head before", lambda x: np.roll(x, 1, axis=1)),
        ("the first batch entry", lambda x: np.broadcast_to(x[:1], x.shape)),
        ("another batch entry", lambda x: np.roll(x, 1, axis=0)),
    )
    for phrase, order in orders:
        of = f"the memory of the state of {phrase}"
        yield variant("state_of_other_head", of, handed=_moved(order), **whole)
    del evidence


def _moved(order: Move) -> Callable[[Bounded, Real], tuple[Bounded, Real]]:
    return lambda key, value: (moved(order)(key), order(value))


def _swapped(key: Bounded, value: Real) -> tuple[Bounded, Real]:
    return Bounded(value, np.zeros_like(value)), key.output


def _transposed(problem: Problem, on_integers: Deviation) -> Bounded | None:
    """Predict integers; on reals, features in the place of values have no bound."""
    square = problem.shape.key_dim == problem.shape.value_dim
    if not square:
        return problem.solve()
    if problem.integers is not None:
        return on_integers.predict(problem)
    exact = problem.solve()
    return Bounded(exact.output, np.full_like(exact.bound, np.inf))


def narrowed(evidence: Evidence) -> Iterator[Deviation]:
    """Yield states that are rounded when they are returned."""
    for to in formats(evidence):
        for name, what, stages in (
            ("state_returned_rounded", "a state", Stages(memory=to, normalizer=to)),
            ("memory_returned_rounded", "the memory of a state", Stages(memory=to)),
            (
                "normalizer_returned_rounded",
                "the normalizer of a state",
                Stages(normalizer=to),
            ),
        ):
            yield staged(
                name,
                f"{what} {to.phrase} when it is returned",
                stages,
                state_dtype=to.bound_dtype,
                normalizer_dtype=to.bound_dtype,
            )
