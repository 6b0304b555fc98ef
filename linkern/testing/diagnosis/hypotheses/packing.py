"""Packed sequences that begin elsewhere than they should."""

from collections.abc import Callable, Iterator
from functools import partial

from linkern.oracle import Bounded
from linkern.testing.diagnosis.hypotheses.evidence import Evidence
from linkern.testing.diagnosis.hypotheses.hypothesis import Deviation, hypothesis
from linkern.testing.diagnosis.hypotheses.probe import separately
from linkern.testing.problems.problem import Problem

Edges = Callable[[tuple[int, ...]], tuple[int, ...]]


@hypothesis("packed", 10)
def packs(evidence: Evidence) -> Iterator[Deviation]:
    """Yield packed sequences that begin elsewhere than they should."""
    del evidence
    rows: list[tuple[str, str, Edges]] = [
        ("not_reset", "taken for one", lambda edges: (edges[0], edges[-1])),
        ("goes_on_after_empty", "that go on after an empty one", _merged_at_empty),
    ]
    for chunk in (8, 16, 32, 64, 128):
        phrase = f"that begin at multiples of {chunk} only"
        rows.append(("reset_on_chunk_grid", phrase, partial(_on_grid, chunk)))
    for name, phrase, edges in rows:

        def predict(problem: Problem, edges: Edges = edges) -> Bounded:
            return separately(problem, edges(problem.knobs["segments"]))

        yield Deviation(f"packed_{name}", f"packed sequences {phrase}", predict)


def _merged_at_empty(edges: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(edge for edge in edges if edges.count(edge) == 1)


def _on_grid(chunk: int, edges: tuple[int, ...]) -> tuple[int, ...]:
    starts = {-(-edge // chunk) * chunk for edge in edges[1:-1]}
    inner = sorted(edge for edge in starts if edges[0] < edge < edges[-1])
    return (edges[0], *inner, edges[-1])
