"""Free weights, similarities, and where attention is a GRU again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import linkern
from linkern.attention import kernel_attention, softmax_attention
from linkern.similarity import exponential, of_features
from linkern.transformer.road import (
    gru_weights,
    similarity_weights,
    weighted_candidates,
)
from tests.transformer.road_problems import (
    FEW,
    FORMS,
    close,
    drawn,
    free,
    law_the_past_is_only_rescaled,
    loop,
    on,
    seeds,
    sizes,
)

# Free weights, in heads.


def averages(weights, candidate, wrong=""):
    """Average channel by channel, or in a `wrong` way."""
    heads, channels = weights.shape[-3], candidate.shape[-1]
    each, columns = channels // heads, []
    for d in range(channels):
        head = d % heads if wrong == "heads interleaved" else d // each
        matrix = weights[..., head, :, :]
        if wrong == "one head for all":
            matrix = weights[..., 0, :, :]
        axis = -2 if wrong == "by column" else -1
        total = matrix.sum(axis=axis, keepdims=True)
        total = 1.0 if wrong == "not normalised" else total
        columns.append(np.vecdot(matrix / total, candidate[..., None, :, d]))
    return np.stack(columns, axis=-1)


def law_averages_are_channel_by_channel(average, weights, candidate):
    close(average(weights, candidate), averages(weights, candidate))


def law_equal_candidates_are_kept(average, weights, candidate):
    same = np.broadcast_to(candidate[..., :1, :], candidate.shape)
    got = average(weights, same)
    close(got, np.broadcast_to(same[..., :1, :], got.shape))


def law_scale_of_a_row_does_not_matter(average, weights, candidate):
    factors = 2.0 ** np.arange(weights.shape[-2])[:, None]
    got = average(factors * weights, candidate)
    assert np.array_equal(got, average(weights, candidate))


def law_linear_in_the_values(average, weights, candidate):
    """Any affine map of the values can come after: rows of weights sum to 1."""
    rng, heads = np.random.default_rng(0), weights.shape[-3]
    each = candidate.shape[-1] // heads
    matrix = np.kron(np.eye(heads), rng.normal(size=(each, each)))
    offset = rng.normal(size=candidate.shape[-1])
    before = average(weights, candidate @ matrix + offset)
    close(before, average(weights, candidate) @ matrix + offset)


AVERAGE_LAWS = {
    law_averages_are_channel_by_channel: (
        *("not normalised", "by column", "heads interleaved", "one head for all"),
    ),
    law_equal_candidates_are_kept: ("not normalised", "by column"),
    law_scale_of_a_row_does_not_matter: ("not normalised", "by column"),
    law_linear_in_the_values: ("not normalised", "by column", "heads interleaved"),
}


@pytest.mark.parametrize("law", AVERAGE_LAWS)
def test_laws_of_averages(eager_lib, law):
    @FEW
    @given(seeds(), sizes(), st.integers(1, 3))
    def holds(rng, size, each):
        law(on(eager_lib, weighted_candidates), *free(rng, *size, each))

    holds()


@pytest.mark.parametrize(
    ("law", "wrong"),
    [(law, wrong) for law, names in AVERAGE_LAWS.items() for wrong in names],
)
def test_laws_of_averages_fail_on_mutants(law, wrong):
    inputs = free(np.random.default_rng(0), (2,), 5, 3)
    law(averages, *inputs)
    with pytest.raises(AssertionError):
        law(lambda *inputs: averages(*inputs, wrong), *inputs)


def test_one_head_for_each_channel_is_the_gru(eager_lib):
    for seed in range(5):
        update, candidate, first = drawn(np.random.default_rng(seed), (2,), 6, 4)
        columns = np.concatenate([first[..., None, :], candidate], axis=-2)
        weights = on(eager_lib, gru_weights)(update)
        got = on(eager_lib, weighted_candidates)(weights, columns)
        close(got, loop(update, candidate, first))


# Weights from queries and keys.


def head_rows(rng, heads=3, length=6, key_dim=2, value_dim=2):
    query, key = rng.normal(size=(2, heads, length, key_dim))
    return query, key, rng.normal(size=(length, heads * value_dim))


def side_by_side(x):
    return np.concatenate(list(x), axis=-1)


def law_similarities_are_attention(weights_of, lib, seed, causal):
    """Every road to one result: kernel, softmax, and for features linear attention."""
    query, key, value = head_rows(np.random.default_rng(seed))
    heads = np.stack(np.split(value, 3, axis=-1))
    q, k, v, apart = (lib.array(x) for x in (query, key, value, heads))
    features = of_features(linkern.elu_plus_one)
    roads = [
        (s, kernel_attention(q, k, apart, s, causal=causal))
        for s in (exponential(), features)
    ]
    roads.append(
        (exponential(0.7), softmax_attention(q, k, apart, causal=causal, scale=0.7))
    )
    for form in FORMS:
        found = linkern.linear_attention(q, k, apart, causal=causal, form=form)
        roads.append((features, found.output))
    for similarity, due in roads:
        weights = weights_of(q, k, similarity, causal=causal)
        got = lib.numpy(weighted_candidates(weights, v))
        close(got, side_by_side(lib.numpy(due)))


@pytest.mark.parametrize("causal", [True, False])
def test_similarities_are_attention(eager_lib, causal):
    for seed in range(3):
        law_similarities_are_attention(similarity_weights, eager_lib, seed, causal)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda q, k, s, causal: s(q, k),
        lambda q, k, s, causal: similarity_weights(k, q, s, causal=causal),
        lambda q, k, s, causal: similarity_weights(q, q, s, causal=causal),
        lambda q, k, s, causal: similarity_weights(2 * q, k, s, causal=causal),
    ],
)
def test_other_weights_are_other_attention(torch, wrong):
    lib = type("Torch", (), {"array": torch.asarray, "numpy": np.asarray})
    with pytest.raises(AssertionError):
        law_similarities_are_attention(wrong, lib, 0, causal=True)


def test_similarities_do_more_than_rescale_the_past():
    query, key, _ = head_rows(np.random.default_rng(0))
    weights = similarity_weights(query, key, exponential())
    weights = weights / weights.sum(axis=-1, keepdims=True)
    own = np.diagonal(weights, axis1=-2, axis2=-1)
    # As a GRU these would be rows after a first one without an initial state.
    rows = np.concatenate([np.zeros_like(weights[..., :1]), weights], axis=-1)
    with pytest.raises(AssertionError):
        law_the_past_is_only_rescaled(lambda _: rows, np.moveaxis(own, -2, -1))
    same = similarity_weights(query[:, :1] + 0 * query, key, exponential())
    same = same / same.sum(axis=-1, keepdims=True)
    rows = np.concatenate([np.zeros_like(same[..., :1]), same], axis=-1)
    own = np.diagonal(same, axis1=-2, axis2=-1)
    law_the_past_is_only_rescaled(lambda _: rows, np.moveaxis(own, -2, -1))
