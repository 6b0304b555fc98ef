"""Costs of attention against counts: of products that ran, of entries of masks."""

from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import linkern
from linkern.analysis.attention_matrix import attention_weights
from linkern.attention import (
    lsh_attention,
    softmax_attention,
    sparse_attention,
    sparse_mask,
)
from linkern.cost import Cost, linear_cost, lsh_cost, softmax_cost, sparse_cost

few = settings(max_examples=10)
K, V = 3, 5
LENGTHS = st.integers(1, 40)
PATTERNS = st.sampled_from(("local", "strided", "fixed"))


def products(torch, function, *inputs, **options):
    """Multiply-adds of all matrix products of a call, counted by PyTorch.

    It sees operations of its own, so no call goes to NumPy.
    """
    counter = torch.utils.flop_counter.FlopCounterMode(display=False)
    with counter, patch("linkern.operators.definition.whole_call", return_value=None):
        function(*inputs, **options)
    return counter.get_total_flops() // 2


@pytest.fixture(scope="module")
def counting(torch):
    import torch.utils.flop_counter

    return torch


def rows(torch, length, dim):
    drawn = np.random.default_rng(length).normal(size=(length, dim))
    return torch.asarray(drawn)


# Each law takes the function that gives the cost.


def law_softmax(cost_of, torch, length, more, causal):
    source = length + more
    query, key, value = (
        rows(torch, *x) for x in ((length, K), (source, K), (source, V))
    )
    sizes = {"key_dim": K, "value_dim": V, "source_length": source, "causal": causal}
    found = cost_of(length, **sizes)
    for size in (None, 4):
        options = {"causal": causal, "block_size": size}
        due = products(torch, softmax_attention, query, key, value, **options)
        assert found.multiply_adds == due
    narrow = query[:, :0], key[:, :0], value
    weighted = products(torch, softmax_attention, *narrow, causal=causal)
    assert found.scores * V == weighted
    weights = attention_weights(softmax_attention, query, key, value, causal=causal)
    assert found.pairs == int((weights != 0).sum())
    # A cache: what the next query reads are all keys and values.
    assert found.state == key.numel() + value.numel()


def law_sparse(cost_of, torch, length, pattern, window, causal):
    query, key, value = (rows(torch, length, dim) for dim in (K, K, V))
    for summary in {None, 1, (window + 1) // 2} if pattern == "fixed" else {None}:
        options = {"pattern": pattern, "window": window, "summary": summary}
        found = cost_of(length, key_dim=K, value_dim=V, causal=causal, **options)
        given_ = {**options, "causal": causal}
        due = products(torch, sparse_attention, query, key, value, **given_)
        assert found.multiply_adds == due
        narrow = query[:, :0], key[:, :0], value
        assert found.scores * V == products(torch, sparse_attention, *narrow, **given_)
        mask = sparse_mask(pattern, length, window, causal, summary=summary)
        assert found.pairs == mask.sum()
        # Later queries, some windows of them, and the tokens that they see.
        later = sparse_mask(
            pattern, length + 2 * window + 1, window, causal, summary=summary
        )
        seen = later[length:, :length].any(axis=0).sum() if causal else length
        assert found.state == seen * (K + V)


def law_hashing(cost_of, torch, length, size, rounds, count, causal):
    query, value = rows(torch, length, K), rows(torch, length, V)
    options = {"rounds": rounds, "bucket_count": count, "chunk_size": size}
    options["causal"] = causal
    found = cost_of(length, key_dim=K, value_dim=V, **options)
    due = products(torch, lsh_attention, query, value, rng=0, **options)
    assert found.multiply_adds == due
    without = products(torch, lsh_attention, query, value[:, :0], rng=0, **options)
    assert found.scores * V == due - without
    one = {**options, "bucket_count": 1, "rounds": 1}
    weights = attention_weights(lsh_attention, query, value, **one)
    others = int((weights != 0).sum() - (weights.diagonal() != 0).sum())
    assert found.pairs == rounds * others
    assert found.state == query.numel() + value.numel() + rounds * length


def law_linear(cost_of, torch, length, form, size, causal, normalize):
    query, key, value = (rows(torch, length, dim) for dim in (K, K, V))
    options = {"form": form, "causal": causal, "normalize": normalize}
    options["chunk_size"] = size if form in ("auto", "chunkwise") else None
    found = cost_of(length, features=K, value_dim=V, **options)
    op = linkern.linear_attention
    due = products(torch, op, query, key, value, **options)
    assert found.multiply_adds == due
    # Of a memory of F x W, every product has a factor F or W; pairs have their sum.
    columns = V + normalize
    wide = products(torch, op, query, key, torch.cat([value] * 2, -1), **options)
    per_column = (wide - due) // V
    assert found.scores * K == due - per_column * columns
    pairs = attention_weights(op, query, key, value, causal=causal)
    assert found.pairs == int((pairs != 0).sum())
    state = op(query, key, value, **options).state
    assert found.state == sum(x.numel() for x in state if x is not None)


@few
@given(length=LENGTHS, more=st.integers(0, 5), causal=st.booleans())
def test_softmax(counting, length, more, causal):
    law_softmax(softmax_cost, counting, length, more, causal)


@few
@given(
    length=LENGTHS, pattern=PATTERNS, window=st.integers(1, 45), causal=st.booleans()
)
def test_sparse(counting, length, pattern, window, causal):
    law_sparse(sparse_cost, counting, length, pattern, window, causal)


@few
@given(
    length=LENGTHS,
    size=st.integers(1, 45),
    rounds=st.integers(1, 3),
    count=st.sampled_from((None, 1, 2, 6, (2, 2, 4))),
    causal=st.booleans(),
)
def test_hashing(counting, length, size, rounds, count, causal):
    law_hashing(lsh_cost, counting, length, size, rounds, count, causal)


@few
@given(
    length=LENGTHS,
    form=st.sampled_from(("auto", "recurrent", "chunkwise", "parallel")),
    size=st.sampled_from((None, 1, 2, 4, 7)),
    causal=st.booleans(),
    normalize=st.booleans(),
)
def test_linear(counting, length, form, size, causal, normalize):
    law_linear(linear_cost, counting, length, form, size, causal, normalize)


def off_by(field, cost_of):
    """The same cost with one number too many in a field."""

    def wrong(*sizes, **options):
        cost = cost_of(*sizes, **options)
        return Cost(**{**vars(cost), field: getattr(cost, field) + 1})

    return wrong


@pytest.mark.parametrize("field", ["pairs", "scores", "multiply_adds", "state"])
@pytest.mark.parametrize(
    ("law", "cost_of", "case"),
    [
        (law_softmax, softmax_cost, (9, 2, True)),
        (law_sparse, sparse_cost, (9, "local", 3, True)),
        (law_sparse, sparse_cost, (9, "strided", 3, False)),
        (law_sparse, sparse_cost, (9, "fixed", 2, True)),
        (law_hashing, lsh_cost, (9, 2, 2, 4, True)),
        (law_linear, linear_cost, (9, "chunkwise", 4, True, True)),
        (law_linear, linear_cost, (9, "recurrent", None, False, False)),
    ],
)
def test_a_law_fails_on_one_too_many(counting, law, cost_of, case, field):
    law(cost_of, counting, *case)
    with pytest.raises(AssertionError):
        law(off_by(field, cost_of), counting, *case)


# What the literature says of the growth, from doubling the length.
LONG = [2**n for n in range(10, 21)]


def law_grows_by(low, high, cost_of):
    counts = [cost_of(length) for length in LONG]
    for before, after in pairwise(counts):
        assert low <= after / before <= high


def softmax_work(length):
    return softmax_cost(length, key_dim=64, value_dim=64).multiply_adds


def hashing_work(length, factors=None):
    """Chunks of 64, and so many buckets that one holds half a chunk."""
    buckets = 2 * length // 64
    factors = (2,) * (buckets.bit_length() - 1) if factors is None else factors
    sizes = {"key_dim": 64, "value_dim": 64, "chunk_size": 64}
    return lsh_cost(length, bucket_count=factors, **sizes).multiply_adds


def one_rotation_work(length):
    return hashing_work(length, factors=(2 * length // 64,))


def sparse_work(pattern, power):
    def work(length):
        window = int(np.ceil(length**power))
        sizes = {"key_dim": 64, "value_dim": 64, "pattern": pattern}
        return sparse_cost(length, window=window, **sizes).multiply_adds

    return work


def linear_work(form):
    def work(length):
        cost = linear_cost(length, features=64, value_dim=64, form=form)
        return cost.multiply_adds

    return work


def quadratic(cost_of):
    # Reading an empty memory is linear, and at most one part in 32 of the work.
    law_grows_by(4 * (1 - 1 / 32), 4, cost_of)


def linear(cost_of):
    law_grows_by(2, 2, cost_of)


def log_linear(cost_of):
    # (2 N log 2N) / (N log N) is 2 + 2 / log2 N; linear terms bring it closer to 2.
    law_grows_by(2 + 1e-3, 2 + 2 / 10, cost_of)


def square_root(cost_of):
    # The window is rounded up to an integer: 2^1.5 but for one part in 32.
    law_grows_by(2**1.5 * (1 - 1 / 32), 2**1.5 * (1 + 1 / 32), cost_of)


GROWTH = {
    quadratic: (softmax_work, linear_work("parallel")),
    linear: (linear_work("recurrent"), linear_work("chunkwise")),
    log_linear: (hashing_work,),
    square_root: (sparse_work("strided", 0.5), sparse_work("fixed", 0.5)),
}


@pytest.mark.parametrize(
    ("law", "cost_of"), [(law, x) for law, costs in GROWTH.items() for x in costs]
)
def test_growth(law, cost_of):
    law(cost_of)
    others = [x for other, costs in GROWTH.items() if other is not law for x in costs]
    # Also what a mistake makes of a cost: a window that does not grow with the root,
    # and one rotation for all buckets, which is quadratic.
    for wrong in (*others, sparse_work("strided", 0.25)):
        with pytest.raises(AssertionError):
            law(wrong)


def test_one_rotation_for_all_buckets_is_quadratic_in_the_end():
    with pytest.raises(AssertionError):
        log_linear(one_rotation_work)
    assert one_rotation_work(2**22) > 3.9 * one_rotation_work(2**21)


def test_softmax_is_bounded_by_the_larger_dimension():
    for key_dim, value_dim in ((64, 16), (16, 64)):
        cost = softmax_cost(100, key_dim=key_dim, value_dim=value_dim)
        most = 100 * 100 * max(key_dim, value_dim)
        assert most <= cost.multiply_adds <= 2 * most


def test_a_cost_is_frozen():
    with pytest.raises(AttributeError):
        softmax_cost(1, key_dim=1, value_dim=1).pairs = 2


SIZES = {"key_dim": 2, "value_dim": 2}


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (
            lambda: softmax_cost(-1, **SIZES),
            ValueError,
            "`length` must not be negative",
        ),
        (lambda: softmax_cost(1.0, **SIZES), TypeError, "`length` must be an integer"),
        (
            lambda: softmax_cost(1, key_dim=-1, value_dim=1),
            ValueError,
            "`key_dim` must not be negative",
        ),
        (
            lambda: softmax_cost(3, source_length=2, **SIZES),
            ValueError,
            "`source_length` must be at least 3, got 2",
        ),
        (
            lambda: sparse_cost(3, pattern="all", window=2, **SIZES),
            ValueError,
            "`pattern` must be one of",
        ),
        (
            lambda: lsh_cost(3, bucket_count=3, **SIZES),
            ValueError,
            "`bucket_count` must be 1",
        ),
        (
            lambda: linear_cost(3, features=-1, value_dim=2),
            ValueError,
            "`features` must not be negative",
        ),
        (
            lambda: linear_cost(
                3, features=1, value_dim=2, form="recurrent", chunk_size=2
            ),
            ValueError,
            "`chunk_size` applies to form",
        ),
    ],
)
def test_errors(call, error, sentence):
    with pytest.raises(error, match=sentence):
        call()
