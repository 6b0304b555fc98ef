"""Softmax beside linear attention: constants and crossings, by counting them out."""

from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from linkern.cost import (
    crossover,
    linear_cost,
    linear_factor,
    softmax_cost,
    softmax_factor,
)

DIMS = st.integers(1, 9)
FORMS = st.sampled_from(
    (
        ("recurrent", None), ("parallel", None), ("auto", None),
        ("chunkwise", 1), ("chunkwise", 3), ("chunkwise", 8),
    )
)  # fmt: skip


def fewer(length, keys, values, features, *, masked, **options):
    linear = linear_cost(
        length, features=features, value_dim=values, **options
    ).multiply_adds
    softmax = softmax_cost(
        length, key_dim=keys, value_dim=values, causal=options["causal"]
    )
    scores = softmax.scores if masked else softmax.pairs
    return linear < scores * (keys + values)


def law_from_there_on(crossing, keys, values, features, **options):
    found = crossing(key_dim=keys, value_dim=values, features=features, **options)
    options = {"masked": True, "causal": True, **options}
    # Linear attention needs at most this for a token, twice as much if padded, and
    # softmax at least length (K + V) / 2: beyond this the answer cannot change.
    chunk = options.get("chunk_size") or 64
    most = (2 * features + chunk) * (values + 1) + chunk * features
    end = 4 * most // (keys + values) + 4 * chunk
    wins = [x for x in range(1, end) if fewer(x, keys, values, features, **options)]
    loses = set(range(1, end)) - set(wins)
    if options["form"] != "parallel":
        assert found == max(loses, default=0) + 1
    elif found is None:
        # Both are quadratic: which one is larger in the end shows far out.
        assert not fewer(10**6, keys, values, features, **options)
    else:
        assert fewer(found, keys, values, features, **options)
        assert fewer(10**6, keys, values, features, **options)
        assert found == 1 or not fewer(found - 1, keys, values, features, **options)


@settings(max_examples=60)
@given(
    dims=st.tuples(DIMS, DIMS, DIMS), form=FORMS, causal=st.booleans(),
    normalize=st.booleans(), padded=st.booleans(), masked=st.booleans(),
)  # fmt: skip
def test_crossover(dims, form, causal, normalize, padded, masked):
    name, size = form
    assume(size is not None or name in ("recurrent", "parallel") or sum(dims) > 9)
    law_from_there_on(
        crossover, *dims, form=name, chunk_size=size, causal=causal,
        normalize=normalize, padded=padded, masked=masked,
    )  # fmt: skip


def one_later(**asked):
    return crossover(**asked) + 1


def one_earlier(**asked):
    return crossover(**asked) - 1


def the_first_time(**asked):
    """Where linear attention wins once, though it may lose again."""
    options = dict(asked)
    dims = (options.pop(x) for x in ("key_dim", "value_dim", "features"))
    dims = tuple(dims)
    options = {"masked": True, "causal": True, **options}
    return next(x for x in range(1, 10**4) if fewer(x, *dims, **options))


def of_the_recurrent_form(**asked):
    return crossover(**{**asked, "form": "recurrent", "chunk_size": None})


CASES = [
    (one_later, {"form": "recurrent"}),
    (one_earlier, {"form": "recurrent"}),
    (one_later, {"form": "recurrent", "causal": False}),
    (one_earlier, {"form": "parallel", "normalize": False}),
    (one_later, {"form": "chunkwise", "chunk_size": 8}),
    (one_earlier, {"form": "chunkwise", "chunk_size": 8, "masked": False}),
    (of_the_recurrent_form, {"form": "chunkwise", "chunk_size": 8}),
    (the_first_time, {"form": "chunkwise", "chunk_size": 8}),
]
# As many features as that, and what is left of a chunk matters around the crossing.
DIMS_OF = {the_first_time: (2, 2, 4)}


@pytest.mark.parametrize(("wrong", "options"), CASES)
def test_a_wrong_crossover_is_caught(wrong, options):
    dims = DIMS_OF.get(wrong, (9, 9, 4))
    law_from_there_on(crossover, *dims, **options)
    with pytest.raises(AssertionError):
        law_from_there_on(wrong, *dims, **options)


def test_a_form_that_computes_all_pairs_never_wins_with_as_many_features():
    assert crossover(key_dim=8, value_dim=8, form="parallel") is None
    assert crossover(key_dim=8, value_dim=8, features=2, form="parallel") is not None


def law_softmax_factor(factor, keys, values):
    for length in (1, 7, 64):
        found = softmax_cost(length, key_dim=keys, value_dim=values).multiply_adds
        assert factor(keys, values) * length**2 * max(keys, values) == found
    assert 1 < factor(keys, values) <= 2


def law_linear_factor(factor, features, values, **options):
    found = factor(features, values, **options)
    size = options.get("chunk_size") or 64
    for chunks in (1, 5, 8, 17):
        length = chunks * size
        sizes = {"features": features, "value_dim": values}
        due = linear_cost(length, **sizes, **options).multiply_adds
        assert found * length * features * values == due
    if options["form"] == "recurrent":
        assert 2 <= found <= 4


@given(features=DIMS, values=DIMS, form=FORMS, normalize=st.booleans())
def test_factors(features, values, form, normalize):
    law_softmax_factor(softmax_factor, features, values)
    name, size = form
    assume(name != "parallel")
    options = {"form": name, "chunk_size": size, "normalize": normalize}
    law_linear_factor(linear_factor, features, values, **options)


def always_two(*dims, **options):
    return Fraction(2)


def of_chunks_of_64(*dims, chunk_size, **options):
    return linear_factor(*dims, **options)


def test_wrong_factors_are_caught():
    with pytest.raises(AssertionError):
        law_softmax_factor(always_two, 3, 4)
    for form in ("recurrent", "chunkwise"):
        with pytest.raises(AssertionError):
            law_linear_factor(always_two, 3, 4, form=form)
    with pytest.raises(AssertionError):
        law_linear_factor(of_chunks_of_64, 3, 4, form="chunkwise", chunk_size=8)


@pytest.mark.parametrize(
    ("ask", "error", "sentence"),
    [
        (
            lambda: crossover(key_dim=0, value_dim=1),
            ValueError,
            "`key_dim` must be a positive integer",
        ),
        (
            lambda: crossover(key_dim=1, value_dim=1, masked=None),
            TypeError,
            "`masked` must be True or False",
        ),
        (
            lambda: crossover(key_dim=1, value_dim=1, form="parallel", chunk_size=3),
            ValueError,
            "`chunk_size` applies to form",
        ),
        (
            lambda: linear_factor(1, 1, form="parallel"),
            ValueError,
            '`form` must be one of "auto", "recurrent", "chunkwise"',
        ),
        (
            lambda: softmax_factor(1, 0.5),
            TypeError,
            "`value_dim` must be an integer",
        ),
    ],
)
def test_errors(ask, error, sentence):
    with pytest.raises(error, match=sentence):
        ask()
