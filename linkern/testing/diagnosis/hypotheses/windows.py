"""Keys that count less, or not at all, with distance or from some token on."""

from collections.abc import Callable, Iterator

import numpy as np

from linkern.testing.diagnosis.hypotheses.evidence import Evidence
from linkern.testing.diagnosis.hypotheses.hypothesis import (
    Deviation,
    causal,
    hypothesis,
    linear,
)
from linkern.testing.diagnosis.hypotheses.measuring import (
    fitted,
    geometric,
    spelt,
)
from linkern.testing.diagnosis.hypotheses.pairs import Condition, counted, seen
from linkern.testing.diagnosis.hypotheses.variant import in_parts, variant


@hypothesis("outputs", 60, linear)
def windows(evidence: Evidence) -> Iterator[Deviation]:
    """Yield keys forgotten by distance, and the first or last key of all."""
    ends: list[tuple[str, Condition]] = [
        ("last", lambda pairs: pairs.key == pairs.last),
        ("first", lambda pairs: pairs.key == 0),
    ]
    if causal(evidence.scope):
        ends = [
            ("first", lambda pairs: (pairs.key == 0) & (pairs.query > 0)),
            ("last", lambda pairs: pairs.own & (pairs.query == pairs.last)),
        ]
    for which, end in ends:
        name, phrase = f"{which}_key_lost", f"the {which} key lost"
        yield from in_parts(evidence, name, phrase, counted(end, 0))
    width = evidence.first_row
    if causal(evidence.scope) and width:
        phrase = f"keys forgotten after {width} tokens"
        beyond = counted(lambda pairs: pairs.query - pairs.key >= width, 0)
        yield from in_parts(evidence, "window", phrase, beyond)


@hypothesis("outputs", 70, linear)
@hypothesis("far", 70, linear)
def limits(evidence: Evidence) -> Iterator[Deviation]:
    """Yield keys that are lost from some token on."""
    first = evidence.first_row
    if first == 0:
        return
    for chunk in (None, *(2**n for n in range(11))):
        late = "" if chunk is None else f" for all later chunks of {chunk}"
        limit = first - (chunk or 0)
        if first % (chunk or 1) or limit <= 0:
            continue
        yield from in_parts(
            evidence,
            "keys_beyond_lost",
            f"the keys from {limit} on lost{late}",
            counted(_beyond(chunk, limit), 0),
        )


def _beyond(chunk: int | None, limit: int) -> Condition:
    if chunk is None:
        return lambda pairs: pairs.seen & (pairs.key >= limit)
    return lambda pairs: pairs.carried(chunk) & (pairs.key >= limit)


@hypothesis("outputs", 180, linear, causal)
def decay(evidence: Evidence) -> Iterator[Deviation]:
    """Yield sums that shrink with every token, or every chunk, by a measured factor."""
    normalize = evidence.scope.contract.normalize
    for chunk in evidence.likely_sizes:
        for where in ("", " of the numerator")[: 1 + normalize]:
            shrinking = _shrinking(chunk, where)
            rate = fitted(evidence, _of_rate(shrinking), geometric(-8, 0))
            if rate is None:
                continue
            factor = float(np.exp(-rate))
            rounded = {round(factor, digits) for digits in range(1, 17)}
            # Fewer digits are further from the factor that was fitted.
            for spelling in sorted(rounded, key=lambda x: len(repr(x))):
                if 0 < spelling < 1:
                    yield shrinking(spelling)


def _of_rate(shrinking: Callable[[float], Deviation]) -> Callable[[float], Deviation]:
    return lambda rate: shrinking(float(np.exp(-rate)))


def _shrinking(chunk: int, where: str) -> Callable[[float], Deviation]:
    """Return what makes a deviation of a factor per chunk, or per token."""
    per = "token" if chunk == 1 else f"chunk of {chunk}"

    def shrinking(factor: float) -> Deviation:
        return variant(
            "decay",
            f"a decay{where} by {spelt(factor)} per {per}",
            numerator=lambda p: p.seen * factor ** np.maximum(p.behind(chunk), 0),
            denominator=seen if where else None,
            # The factor itself is rounded, and so is each of its powers.
            roundings=2.0,
        )

    return shrinking
