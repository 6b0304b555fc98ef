"""Sizes of problems: those of interpreted kernels, whose calls are slow."""

import pytest
from hypothesis import given, settings

from linkern.testing.problems.context import Scope
from linkern.testing.problems.reach import of_gradients
from linkern.testing.problems.shapes import INTERPRETED, shapes
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import OPERATORS

LONGEST, FAR = 130, 70


def drawn(*, interpreted, ranks=(), op="gla", reach=None):
    contract = Contract(max_length=LONGEST)
    scope = Scope(
        OPERATORS[op], contract, "float32", interpreted=interpreted, ranks=ranks
    )
    seen = []

    @settings(max_examples=200, database=None, derandomize=True, deadline=None)
    @given(shapes(scope, reach=reach and reach(scope)))
    def draw(shape):
        seen.append(shape)

    draw()
    return seen


def programs(made):
    return sum(one.batch * one.heads * one.length for one in made) / len(made)


def test_interpreted_kernels_get_many_heads_or_many_tokens():
    made = drawn(interpreted=True)
    long = [one for one in made if one.length > INTERPRETED]
    assert {(one.batch, one.heads) for one in long} == {(1, 1)}
    assert {128, 129} <= {one.length for one in long}
    short = [one for one in made if one.length in (64, 65, 66)]
    assert max(one.heads for one in short) == 5
    assert programs(made) < 0.6 * programs(drawn(interpreted=False))


def test_interpreted_kernels_get_many_heads_while_ranks_have_few_tokens():
    made = drawn(interpreted=True, ranks=(2,))
    assert max(one.heads for one in made if one.length > INTERPRETED) == 5


@pytest.mark.parametrize(("ranks", "heads"), [((), {1}), ((2,), {1, 2})])
def test_far_gradients_of_ranks_have_a_second_head(ranks, heads):
    """A second chunk of a rank may leave out a head, as that of `cp_context` did."""
    made = drawn(interpreted=True, ranks=ranks, op="kda", reach=of_gradients)
    far = {one.heads for one in made if one.length > FAR}
    assert far == heads
