"""Keys that get lost, or count twice, between one chunk and the next."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from linkern.testing.diagnosis.hypotheses.evidence import Evidence
from linkern.testing.diagnosis.hypotheses.hypothesis import (
    Deviation,
    causal,
    hypothesis,
    linear,
)
from linkern.testing.diagnosis.hypotheses.pairs import Condition, Pairs, counted
from linkern.testing.diagnosis.hypotheses.variant import in_parts, variant

# Name, phrase, condition on the pairs, and how often they count.
Row = tuple[str, str, Condition, float]


@hypothesis("outputs", 90, linear)
def edges(evidence: Evidence) -> Iterator[Deviation]:
    """Yield the first or last key of every chunk lost, or counted twice."""
    for chunk in evidence.state_sizes:
        for which, residue in (("last", chunk - 1), ("first", 0)):
            at_edge = _at_edge(chunk, residue)
            key = f"the {which} key of every chunk of {chunk}"
            for name, phrase, times in (
                ("key_lost_at_chunk_edge", f"{key} lost", 0),
                ("key_counted_twice_at_chunk_edge", f"{key} counted twice", 2),
            ):
                yield from in_parts(evidence, name, phrase, counted(at_edge, times))


def _at_edge(chunk: int, residue: int) -> Condition:
    return lambda pairs: pairs.carried(chunk) & (pairs.key % chunk == residue)


@hypothesis("outputs", 100, linear)
def states(evidence: Evidence) -> Iterator[Deviation]:
    """Yield chunks that get lost, late or doubled on their way into the state."""
    for chunk in evidence.state_sizes:
        for name, phrase, condition, times in (
            *_lost(evidence, chunk),
            *_of_state(chunk, only_first=not causal(evidence.scope)),
        ):
            yield from in_parts(evidence, name, phrase, counted(condition, times))
    for chunk in evidence.chunk_sizes if causal(evidence.scope) else ():
        yield _read_after_update(chunk)


def _of_state(chunk: int, *, only_first: bool) -> Iterator[Row]:
    size = f"chunks of {chunk}"
    phrase = f"all keys before the current one of {size} lost"
    yield "state_not_carried", phrase, lambda pairs: pairs.carried(chunk), 0
    if only_first:
        return
    phrase = f"all keys before the latest two of {size} lost"
    yield "state_overwritten", phrase, _behind(chunk, 2, None), 0
    phrase = f"the keys of the latest finished one of {size} lost"
    yield "state_read_late", phrase, _behind(chunk, 1, 1), 0
    phrase = f"the keys of all finished {size} counted twice"
    yield "state_counted_twice", phrase, lambda pairs: pairs.carried(chunk), 2


def _behind(chunk: int, least: int, most: int | None) -> Condition:
    def condition(pairs: Pairs) -> NDArray[np.bool_]:
        behind = pairs.behind(chunk)
        return np.asarray((behind >= least) & (behind <= (most or behind)))

    return condition


def _read_after_update(chunk: int) -> Deviation:
    return variant(
        "state_read_after_update",
        f"a state that already holds the current one of chunks of {chunk} when read",
        numerator=lambda pairs: pairs.seen + 1.0 * (pairs.behind(chunk) == 0),
    )


def _lost(evidence: Evidence, chunk: int) -> Iterator[Row]:
    """Yield one whole chunk lost, or the last one, which is not full."""
    if causal(evidence.scope):
        # It shows from the next chunk on, or in its own rows already.
        number = evidence.first_row // chunk
        numbers = [number - 1, number]
    else:
        keys = evidence.informative[0].problem.shape.keys
        numbers = list(range(-(-keys // chunk)))
    for number in numbers:
        lost = f"the keys {number * chunk} to {(number + 1) * chunk - 1} lost"
        late = f"{lost} for all later chunks of {chunk}"
        yield "chunk_lost", late, _of_chunk(chunk, number, carried=True), 0
        yield "chunk_lost", lost, _of_chunk(chunk, number, carried=False), 0
    phrase = f"the keys after the last full chunk of {chunk} lost"
    yield "tail_keys_lost", phrase, lambda p: p.after_full_chunks(p.key, chunk), 0


def _of_chunk(chunk: int, number: int, *, carried: bool) -> Condition:
    """Return which pairs meet a chunk, through the state or at all."""

    def condition(pairs: Pairs) -> NDArray[np.bool_]:
        inside = pairs.key // chunk == number
        return np.asarray(inside & pairs.carried(chunk) if carried else inside)

    return condition
