"""Division of a sequence among ranks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkern.testing.target.ranks.sharding import Sharding

ORDERS = ("contiguous", "zigzag")


@st.composite
def shardings(draw):
    even = Sharding(draw(st.integers(2, 5)), order=draw(st.sampled_from(ORDERS)))
    count = even.pieces - 1
    edges = draw(st.lists(st.floats(0, 1), min_size=count, max_size=count))
    least = draw(st.integers(0, 1))
    return Sharding(even.ranks, tuple(sorted(edges)), even.order, least)


@given(shardings(), st.integers(0, 40))
def test_every_token_has_one_place(sharding, length):
    tokens = sharding.tokens(length)
    assert len(tokens) == sharding.ranks
    np.testing.assert_array_equal(np.sort(np.concatenate(tokens)), np.arange(length))
    for token in range(length):
        rank, there = sharding.place(token, length)
        assert tokens[rank][there] == token


@given(shardings(), st.integers(0, 40))
def test_pieces_have_the_least_number_of_tokens_if_there_are_so_many(sharding, length):
    sizes = sharding.sizes(length)
    assert sum(sizes) == length
    if length >= sharding.pieces * sharding.least:
        assert min(sizes) >= sharding.least


def test_a_zigzag_gives_every_rank_as_much_of_a_causal_mask():
    tokens = Sharding(3, order="zigzag").tokens(12)
    assert [int(x.sum()) for x in tokens] == [22, 22, 22]
    assert Sharding(3, order="zigzag").last == 0


def test_an_edge_at_a_token_is_found_again():
    for length in range(2, 200):
        edges = (1 / length, (length - 1) / length)
        assert Sharding(3, edges).sizes(length) == (1, length - 2, 1)


def test_a_token_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="`token` must be one of 5, got 5"):
        Sharding(2).place(5, 5)
