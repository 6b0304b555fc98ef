"""Masks that keep too much, or too little."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.testing.diagnosis.hypotheses.evidence import Evidence
from linkern.testing.diagnosis.hypotheses.finishes import rows_filled
from linkern.testing.diagnosis.hypotheses.pairs import (
    Condition,
    Pairs,
    Weights,
    counted,
    seen,
)
from linkern.testing.diagnosis.hypotheses.variant import Deviation, variant

__all__ = ["after_full_chunks", "in_parts", "masks"]


def in_parts(
    evidence: Evidence, name: str, phrase: str, weights: Weights
) -> Iterator[Deviation]:
    """Yield a defect of both sums, of the numerator, and of the denominator alone."""
    yield variant(name, phrase, numerator=weights)
    if evidence.scope.contract.normalize:
        of = f"{phrase} from the numerator"
        yield variant(f"{name}_numerator", of, numerator=weights, denominator=seen)
        of = f"{phrase} from the denominator"
        yield variant(f"{name}_denominator", of, denominator=weights)


def masks(evidence: Evidence) -> Iterator[Deviation]:
    """Yield masks where there should be none, none, strict and leaking ones."""
    if not evidence.scope.operator.causal:
        yield variant(
            "causal_mask",
            "a causal mask",
            numerator=lambda pairs: pairs.key <= pairs.query,
        )
        return
    yield from in_parts(evidence, "no_mask", "future keys not masked", _everything)
    yield from _strict(evidence, None)
    yield from _strict_without_first_row()
    yield variant(
        "leaking_mask",
        "a mask that lets every query see the next key",
        numerator=lambda pairs: pairs.key <= pairs.query + 1,
    )
    for chunk in evidence.chunk_sizes:
        yield from _leaks(evidence, chunk)
    for chunk in evidence.chunk_sizes:
        yield from _strict(evidence, chunk)


def _everything(pairs: Pairs) -> NDArray[np.bool_]:
    return np.ones_like(pairs.seen)


def _strict(evidence: Evidence, chunk: int | None) -> Iterator[Deviation]:
    """Yield masks without the diagonal; a first row has nothing else to see."""

    def own(pairs: Pairs) -> NDArray[np.bool_]:
        first = pairs.query == 0 if chunk is None else pairs.query % chunk == 0
        return np.asarray(pairs.own & ~first)

    rows = "the first row" + (f" of every chunk of {chunk}" if chunk else "")
    lost = f"every query's own key lost, except in {rows}"
    yield from in_parts(evidence, "strict_mask", lost, counted(own, 0))


def _strict_without_first_row() -> Iterator[Deviation]:
    """Yield masks without the diagonal that leave nothing to the first row."""
    strict = counted(lambda pairs: pairs.own, 0)
    parts: tuple[tuple[str, dict[str, Any]], ...] = (
        ("", {"numerator": strict}),
        (" from the numerator", {"numerator": strict, "denominator": seen}),
        (" from the denominator", {"denominator": strict}),
    )
    for fill, what in ((np.nan, "a first row that is not finite"), (0.0, "zero there")):
        for of, sums in parts:
            yield variant(
                "strict_mask",
                f"every query's own key lost{of}, and {what}",
                finish=rows_filled(lambda row, _: row == 0, fill),
                **sums,
            )


def after_full_chunks(
    positions: NDArray[np.int64], length: int, chunk: int
) -> NDArray[np.bool_]:
    """Whether positions are in a last chunk that is not full."""
    return np.asarray(positions >= length // chunk * chunk)


def _leaks(evidence: Evidence, chunk: int) -> Iterator[Deviation]:
    """Yield masks that let too much through, inside chunks or in a tail."""

    def inside(pairs: Pairs) -> NDArray[np.bool_]:
        return np.asarray(pairs.behind(chunk) == 0)

    def next_inside(pairs: Pairs) -> NDArray[np.bool_]:
        return np.asarray(inside(pairs) & (pairs.key == pairs.query + 1))

    def tail(pairs: Pairs) -> NDArray[np.bool_]:
        rows = after_full_chunks(pairs.query, pairs.last + 1, chunk)
        return np.broadcast_to(rows, pairs.seen.shape)

    last = f"after the last full chunk of {chunk}"
    size = f"chunks of {chunk}"
    leaks: tuple[tuple[str, str, Condition], ...] = (
        (
            "leaking_mask",
            f"a mask that lets queries see the next key inside {size}",
            next_inside,
        ),
        (
            "leaking_mask_in_tail",
            f"a mask that lets queries {last} see the next key",
            lambda pairs: tail(pairs) & next_inside(pairs),
        ),
        ("block_mask", f"{size} whose queries see all of their keys", inside),
        ("no_mask_in_tail", f"no mask {last}", tail),
    )
    for name, phrase, leak in leaks:
        yield from in_parts(evidence, name, phrase, _with(leak))


def _with(leak: Condition) -> Weights:
    return lambda pairs: pairs.seen | leak(pairs)
