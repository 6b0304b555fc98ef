"""Keys that count less, or not at all, with distance or from some token on."""

from collections.abc import Callable, Iterator

import numpy as np

from linkern.testing.diagnosis.hypotheses.evidence import Evidence
from linkern.testing.diagnosis.hypotheses.finishes import rows_filled
from linkern.testing.diagnosis.hypotheses.masks import in_parts
from linkern.testing.diagnosis.hypotheses.measuring import (
    fitted,
    geometric,
    spelt,
)
from linkern.testing.diagnosis.hypotheses.pairs import Condition, counted, seen
from linkern.testing.diagnosis.hypotheses.variant import Deviation, variant

__all__ = ["decay", "limits", "windows"]


def windows(evidence: Evidence) -> Iterator[Deviation]:
    """Yield keys forgotten by distance, and the first or last key of all."""
    ends: list[tuple[str, Condition]] = [
        ("last", lambda pairs: pairs.key == pairs.last),
        ("first", lambda pairs: pairs.key == 0),
    ]
    if evidence.scope.operator.causal:
        ends = [
            ("first", lambda pairs: (pairs.key == 0) & (pairs.query > 0)),
            ("last", lambda pairs: pairs.own & (pairs.query == pairs.last)),
        ]
    for which, end in ends:
        weights = counted(end, 0)
        name, phrase = f"{which}_key_lost", f"the {which} key lost"
        yield from in_parts(evidence, name, phrase, weights)
    width = evidence.first_row
    if evidence.scope.operator.causal and width:
        yield from in_parts(
            evidence,
            "window",
            f"keys forgotten after {width} tokens",
            counted(lambda pairs: pairs.query - pairs.key >= width, 0),
        )


def decay(evidence: Evidence) -> Iterator[Deviation]:
    """Yield sums that shrink with every token, or every chunk, by a measured factor."""
    if not evidence.scope.operator.causal:
        return
    normalize = evidence.scope.contract.normalize
    for chunk in evidence.likely_sizes:
        for of in ("", " of the numerator")[: 1 + normalize]:
            family = _shrinking(chunk, of)
            rate = fitted(evidence, _of_rate(family), geometric(-8, 0))
            if rate is None:
                continue
            factor = float(np.exp(-rate))
            rounded = {round(factor, digits) for digits in range(1, 17)}
            # Fewer digits are further from the factor that was fitted.
            for spelling in sorted(rounded, key=lambda x: len(repr(x))):
                if 0 < spelling < 1:
                    yield family(spelling)


def _of_rate(family: Callable[[float], Deviation]) -> Callable[[float], Deviation]:
    return lambda rate: family(float(np.exp(-rate)))


def _shrinking(chunk: int, of: str) -> Callable[[float], Deviation]:
    """Return what makes a deviation of a factor per chunk, or per token."""
    per = "token" if chunk == 1 else f"chunk of {chunk}"

    def family(factor: float) -> Deviation:
        return variant(
            "decay",
            f"a decay{of} by {spelt(factor)} per {per}",
            numerator=lambda p: p.seen * factor ** np.maximum(p.behind(chunk), 0),
            denominator=seen if of else None,
            # The factor itself is rounded, and so is each of its powers.
            roundings=2.0,
        )

    return family


def limits(evidence: Evidence) -> Iterator[Deviation]:
    """Yield keys that get lost, and rows that are not written, from some token on."""
    first = evidence.first_row
    if first == 0:
        return
    for fill, what in ((0.0, "zero"), (np.nan, "not finite")):
        yield variant(
            "rows_beyond_not_written",
            f"rows from {first} on that are {what}",
            finish=rows_filled(lambda rows, _: rows >= first, fill),
        )
    beyond = counted(lambda pairs: pairs.seen & (pairs.key >= first), 0)
    lost = f"the keys from {first} on lost"
    yield from in_parts(evidence, "keys_beyond_lost", lost, beyond)
    for chunk in (2**n for n in range(11)):
        if first % chunk or first <= chunk:
            continue
        yield from in_parts(
            evidence,
            "keys_beyond_lost",
            f"the keys from {first - chunk} on lost for all later chunks of {chunk}",
            counted(_beyond(chunk, first - chunk), 0),
        )


def _beyond(chunk: int, limit: int) -> Condition:
    return lambda pairs: pairs.carried(chunk) & (pairs.key >= limit)
