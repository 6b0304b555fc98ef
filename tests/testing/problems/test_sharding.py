"""Draws of the division among ranks: what must be drawn is drawn."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from linkern.testing.problems.context import Scope
from linkern.testing.problems.mixture import any_problem
from linkern.testing.problems.packing import with_packing
from linkern.testing.problems.sharding import with_sharding
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import OPERATORS

SCOPE = Scope(OPERATORS["gla"], Contract(), "float32", ranks=(2, 3))


def drawn(condition, scope=SCOPE, problems=any_problem):
    """The smallest draw of which a condition is true."""
    options = settings(max_examples=2000, database=None)
    return find(with_sharding(problems(scope)), condition, settings=options)


def packed(scope):
    return with_packing(any_problem(scope))


def sizes(problem):
    return problem.sharding.sizes(problem.length)


@pytest.mark.parametrize(
    "condition",
    [
        lambda problem: 0 in sizes(problem) and problem.length > 3,
        lambda problem: 1 in sizes(problem) and problem.length > 5,
        lambda problem: len(sizes(problem)) == 3,
        lambda problem: max(sizes(problem)) - min(sizes(problem)) > 3,
        lambda problem: problem.shape.batch > 1 and problem.length > 3,
    ],
)
def test_every_kind_of_division_is_drawn(condition):
    assert condition(drawn(condition))


def at_a_boundary(problem):
    (first, *_), offsets = sizes(problem), problem.knobs["packing"].segments[0]
    return first in offsets[1:-1] and 0 < first < problem.length


def test_pieces_end_at_boundaries_of_packed_sequences_and_beside_them():
    assert at_a_boundary(drawn(at_a_boundary, problems=packed))
    drawn(lambda problem: not at_a_boundary(problem), problems=packed)


def test_the_simplest_division_is_even_and_between_two():
    problem = drawn(lambda problem: problem.length > 3)
    assert problem.sharding.ranks == 2
    assert problem.sharding.edges == ()
    assert f"on 2 ranks with {'+'.join(map(str, sizes(problem)))} tokens" in repr(
        problem
    )


def test_a_target_on_one_rank_has_no_division():
    alone = replace(SCOPE, ranks=())
    assert drawn(lambda _: True, alone).sharding is None


@given(st.data())
@settings(max_examples=20)
@pytest.mark.parametrize(
    ("contract", "least", "spread"),
    [
        (Contract(ranks_even=True), 0, 0),
        (Contract(ranks_empty=False), 1, np.inf),
        (Contract(ranks_even=True, ranks_order="zigzag"), 0, 0),
    ],
)
def test_a_declaration_restricts_the_pieces(contract, least, spread, data):
    scope = replace(SCOPE, contract=contract.over(SCOPE.ranks))
    problem = data.draw(with_sharding(any_problem(scope)))
    assert min(sizes(problem)) >= least
    assert max(sizes(problem)) - min(sizes(problem)) <= spread
