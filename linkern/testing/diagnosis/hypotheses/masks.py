"""Masks that keep too much, or too little."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.testing.diagnosis.hypotheses.epilogue import rows_filled
from linkern.testing.diagnosis.hypotheses.evidence import Evidence
from linkern.testing.diagnosis.hypotheses.hypothesis import (
    Deviation,
    causal,
    hypothesis,
    linear,
)
from linkern.testing.diagnosis.hypotheses.pairs import (
    Condition,
    Pairs,
    counted,
    seen,
)
from linkern.testing.diagnosis.hypotheses.variant import in_parts, variant


@hypothesis("outputs", 140, linear, lambda scope: not causal(scope))
def causal_mask(evidence: Evidence) -> Iterator[Deviation]:
    """Yield a mask where there should be none."""
    del evidence
    mask = {"numerator": lambda pairs: pairs.key <= pairs.query}
    yield variant("causal_mask", "a causal mask", **mask)


@hypothesis("outputs", 141, linear, causal)
def strict(evidence: Evidence) -> Iterator[Deviation]:
    """Yield no mask, masks without the diagonal, and one that leaks everywhere."""
    future = "future keys not masked"
    yield from in_parts(evidence, "no_mask", future, lambda p: np.ones_like(p.seen))
    yield from _strict(evidence, None)
    without = counted(lambda pairs: pairs.own, 0)
    parts: tuple[tuple[str, dict[str, Any]], ...] = (
        ("", {"numerator": without}),
        (" from the numerator", {"numerator": without, "denominator": seen}),
        (" from the denominator", {"denominator": without}),
    )
    for fill, what in ((np.nan, "a first row that is not finite"), (0.0, "zero there")):
        for where, sums in parts:
            yield variant(
                "strict_mask",
                f"every query's own key lost{where}, and {what}",
                finish=rows_filled(lambda row, _: row == 0, fill),
                **sums,
            )
    yield variant(
        "leaking_mask",
        "a mask that lets every query see the next key",
        numerator=lambda pairs: pairs.key <= pairs.query + 1,
    )


@hypothesis("outputs", 142, linear, causal)
def leaks(evidence: Evidence) -> Iterator[Deviation]:
    """Yield masks that are wrong inside chunks of some size, or in a tail."""
    for chunk in evidence.chunk_sizes:
        for name, phrase, leak in _leaks(chunk):
            yield from in_parts(evidence, name, phrase, _with(leak))
    for chunk in evidence.chunk_sizes:
        yield from _strict(evidence, chunk)


def _strict(evidence: Evidence, chunk: int | None) -> Iterator[Deviation]:
    """Yield masks without the diagonal; a first row has nothing else to see."""

    def own(pairs: Pairs) -> NDArray[np.bool_]:
        first = pairs.query == 0 if chunk is None else pairs.query % chunk == 0
        return np.asarray(pairs.own & ~first)

    rows = "the first row" + (f" of every chunk of {chunk}" if chunk else "")
    lost = f"every query's own key lost, except in {rows}"
    yield from in_parts(evidence, "strict_mask", lost, counted(own, 0))


def _leaks(chunk: int) -> Iterator[tuple[str, str, Condition]]:
    """Yield names, phrases and the pairs that get through."""

    def inside(pairs: Pairs) -> NDArray[np.bool_]:
        return np.asarray(pairs.behind(chunk) == 0)

    def next_inside(pairs: Pairs) -> NDArray[np.bool_]:
        return np.asarray(inside(pairs) & (pairs.key == pairs.query + 1))

    def tail(pairs: Pairs) -> NDArray[np.bool_]:
        rows = pairs.after_full_chunks(pairs.query, chunk)
        return np.broadcast_to(rows, pairs.seen.shape)

    last, size = f"after the last full chunk of {chunk}", f"chunks of {chunk}"
    next_key = "a mask that lets queries see the next key inside"
    yield "leaking_mask", f"{next_key} {size}", next_inside
    yield (
        "leaking_mask_in_tail",
        f"a mask that lets queries {last} see the next key",
        lambda pairs: tail(pairs) & next_inside(pairs),
    )
    yield "block_mask", f"{size} whose queries see all of their keys", inside
    yield "no_mask_in_tail", f"no mask {last}", tail


def _with(leak: Condition) -> Callable[[Pairs], NDArray[Any]]:
    return lambda pairs: pairs.seen | leak(pairs)
