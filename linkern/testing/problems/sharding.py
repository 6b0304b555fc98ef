"""Draws of the division of a sequence among ranks."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from linkern.testing.problems.context import Scope
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.shapes import EDGES, one_of
from linkern.testing.target.ranks.sharding import Sharding

__all__ = ["even_sharding", "with_sharding"]

# Half of all sequences are divided evenly, and to that a counterexample shrinks.
KINDS = ("even", "near", "even", "anywhere", "even", "near")


@st.composite
def with_sharding(draw: st.DrawFn, problems: st.SearchStrategy[Problem]) -> Problem:
    """Divide the tokens among ranks, if the target runs on several.

    Reaches: shards of unequal size, of no token and of one, edges of shards at those
    of tiles and of packed sequences and beside them.
    """
    problem = draw(problems)
    scope = problem.scope
    if not scope.ranks:
        return problem
    sharding = even_sharding(scope, draw(one_of(*scope.ranks)))
    kind = "even" if scope.contract.ranks_even else draw(one_of(*KINDS))
    if kind != "even" and problem.length:
        ends = st.integers(0, problem.length)
        if kind == "near":
            ends = st.sampled_from(_near(problem))
        count = sharding.pieces - 1
        drawn = sorted(draw(st.lists(ends, min_size=count, max_size=count)))
        edges = tuple(end / problem.length for end in drawn)
        sharding = replace(sharding, edges=edges)
    return problem.told(sharding=sharding)


def even_sharding(scope: Scope, ranks: int) -> Sharding:
    """Return the division into pieces of equal size that a contract allows."""
    contract = scope.contract
    least = 0 if contract.ranks_empty else 1
    return Sharding(ranks, order=contract.ranks_order, least=least)


def _near(problem: Problem) -> list[int]:
    """Return ends of pieces at and beside places where a kernel changes its path."""
    length = problem.length
    ends = {0, 1, 2, length, *(n for n in EDGES if n < length)}
    packing = problem.knobs.get("packing")
    if packing is not None:
        offsets = np.unique(packing.segments[0])
        ends |= {int(n + beside) for n in offsets for beside in (-1, 0, 1)}
    return sorted(n for n in ends | {length - 1} if 0 <= n <= length)
