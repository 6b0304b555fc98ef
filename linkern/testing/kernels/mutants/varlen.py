"""Defects of packed sequences: where states are reset, and what is not written."""

from itertools import pairwise

import numpy as np

from linkern.testing.kernels.assembly import recurrence
from linkern.testing.kernels.mutants.catalogue import enter

__all__: list[str] = []

PACKED = "packed_equals_separate"


def _from_the_first(edges: list[int]) -> list[tuple[int, int, bool]]:
    """Reset the state at the first sequence only."""
    return [(a, b, i == 0) for i, (a, b) in enumerate(pairwise(edges))]


def _after_an_empty_one(edges: list[int]) -> list[tuple[int, int, bool]]:
    """Skip the reset after an empty sequence."""
    spans = list(pairwise(edges))
    before = [(1, 2), *spans[:-1]]
    full = [
        (a, b, a == 0 or c != d) for (a, b), (c, d) in zip(spans, before, strict=True)
    ]
    return [span for span in full if span[0] < span[1]]


def _on_the_grid(edges: list[int]) -> list[tuple[int, int, bool]]:
    """Reset the state where a chunk of 16 begins, not where a sequence does."""
    starts = sorted({(edge + 15) // 16 * 16 for edge in edges[:-1]})
    inner = [edge for edge in starts if edges[0] < edge < edges[-1]]
    return [(a, b, True) for a, b in pairwise([edges[0], *inner, edges[-1]])]


enter(
    "packed_starts_from_the_one_before",
    recurrence("simple_gla", packed=_from_the_first, takes_packed=True),
    "#129: ik_llama.cpp #1933",
    PACKED,
    op="simple_gla",
    cause="packed_not_reset",
)
enter(
    "packed_reset_on_chunk_grid",
    recurrence("gated_delta_rule", packed=_on_the_grid, takes_packed=True),
    "#112: sglang #31833",
    PACKED,
    op="gated_delta_rule",
    cause="packed_reset_on_chunk_grid",
)
enter(
    "packed_kept_past_an_empty_one",
    recurrence("gla", packed=_after_an_empty_one, takes_packed=True),
    "#123: FlashKDA #32: empty sequences",
    PACKED,
    op="gla",
    cause="packed_goes_on_after_empty",
)
enter(
    "packed_slack_not_written",
    recurrence("kda", empty=lambda x: np.full_like(x, np.nan), takes_packed=True),
    "#87: fla #892",
    PACKED,
    op="kda",
)
