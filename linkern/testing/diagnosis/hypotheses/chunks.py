"""Keys that get lost, or count twice, between one chunk and the next."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from linkern.testing.diagnosis.hypotheses.evidence import Evidence
from linkern.testing.diagnosis.hypotheses.masks import after_full_chunks, in_parts
from linkern.testing.diagnosis.hypotheses.pairs import Condition, Pairs, counted
from linkern.testing.diagnosis.hypotheses.variant import Deviation, variant

__all__ = ["edges", "states"]


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


def states(evidence: Evidence) -> Iterator[Deviation]:
    """Yield chunks that get lost, late or doubled on their way into the state."""
    causal = evidence.scope.operator.causal
    for chunk in evidence.state_sizes:
        yield from _lost(evidence, chunk)
        for name, phrase, condition, times in _of_state(chunk):
            if causal or name == "state_not_carried":
                weights = counted(condition, times)
                yield from in_parts(evidence, name, phrase, weights)
    for chunk in evidence.chunk_sizes if causal else ():
        yield _read_after_update(chunk)


def _of_state(chunk: int) -> tuple[tuple[str, str, Condition, float], ...]:
    """Return names, phrases, and how often the keys of which chunks count."""
    of = f"chunks of {chunk}"
    return (
        (
            "state_not_carried",
            f"all keys before the current one of {of} lost",
            lambda pairs: pairs.carried(chunk),
            0,
        ),
        (
            "state_overwritten",
            f"all keys before the latest two of {of} lost",
            lambda pairs: np.asarray(pairs.behind(chunk) >= 2),
            0,
        ),
        (
            "state_read_late",
            f"the keys of the latest finished one of {of} lost",
            lambda pairs: np.asarray(pairs.behind(chunk) == 1),
            0,
        ),
        (
            "state_counted_twice",
            f"the keys of all finished {of} counted twice",
            lambda pairs: pairs.carried(chunk),
            2,
        ),
    )


def _read_after_update(chunk: int) -> Deviation:
    return variant(
        "state_read_after_update",
        f"a state that already holds the current one of chunks of {chunk} when read",
        numerator=lambda pairs: pairs.seen + 1.0 * (pairs.behind(chunk) == 0),
    )


def _lost(evidence: Evidence, chunk: int) -> Iterator[Deviation]:
    """Yield one whole chunk lost, or the last one, which is not full."""
    if evidence.scope.operator.causal:
        # It shows from the next chunk on, or in its own rows already.
        found = evidence.first_row // chunk
        candidates = [found - 1, found]
    else:
        keys = evidence.telling[0].problem.shape.keys
        candidates = list(range(-(-keys // chunk)))
    for number in candidates:
        keys_lost = f"the keys {number * chunk} to {(number + 1) * chunk - 1} lost"
        in_state, everywhere = _of_chunk(chunk, number)
        yield from in_parts(
            evidence,
            "chunk_lost",
            f"{keys_lost} for all later chunks of {chunk}",
            counted(in_state, 0),
        )
        yield from in_parts(evidence, "chunk_lost", keys_lost, counted(everywhere, 0))
    yield from in_parts(
        evidence,
        "tail_keys_lost",
        f"the keys after the last full chunk of {chunk} lost",
        counted(lambda p: after_full_chunks(p.key, p.last + 1, chunk), 0),
    )


def _of_chunk(chunk: int, number: int) -> tuple[Condition, Condition]:
    """Return which pairs meet a chunk through the state, and which meet it at all."""

    def everywhere(pairs: Pairs) -> NDArray[np.bool_]:
        return np.asarray(pairs.key // chunk == number)

    return lambda pairs: everywhere(pairs) & pairs.carried(chunk), everywhere
