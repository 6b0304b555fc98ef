"""Where the weights do not depend on the query, attention is a GRU again."""

import numpy as np
import pytest
from hypothesis import given

import linkern
from linkern import State
from linkern.similarity import of_features
from linkern.transformer.road import gated_average, shares
from tests.transformer.road_problems import (
    FEW,
    FORMS,
    close,
    drawn,
    loop,
    on,
    seeds,
    sizes,
)


def wrong_shares(wrong):
    def run(weight, log_decay):
        total, found = 0.0, []
        for t in range(weight.shape[-2]):
            b, left = weight[..., t, :], np.exp(log_decay[..., t, :])
            left = 1.0 if wrong == "nothing forgotten" else left
            if wrong == "own weight forgotten too":
                total = left * (total + b)
            else:
                total = left * total + b
            share = b / total
            found.append(1 - share if wrong == "exchanged" else share)
        found = np.stack(found, axis=-2)
        if wrong == "share of all weights":
            return weight / weight.sum(axis=-2, keepdims=True)
        return found

    return run


def law_normalised_decay_is_a_gru(shares_of, rng, lead, length, channels):
    """`simple_gla` over the sum of its weights, for one key for each channel."""
    weight = rng.exponential(size=(*lead, length, channels))
    log_decay = -rng.exponential(size=weight.shape)
    value = rng.normal(size=weight.shape)
    got = loop(shares_of(weight, log_decay), value, np.zeros((*lead, channels)))
    for d in range(channels):
        key, column = weight[..., d : d + 1], value[..., d : d + 1]
        columns = np.concatenate([column, np.ones_like(column)], axis=-1)
        sums = linkern.simple_gla(
            np.ones_like(key), key, columns, log_decay[..., d], scale=1.0
        ).output
        close(got[..., d], sums[..., 0] / sums[..., 1])


def test_normalised_decay_is_a_gru(eager_lib):
    @FEW
    @given(seeds(), sizes())
    def holds(rng, size):
        law_normalised_decay_is_a_gru(on(eager_lib, shares), rng, *size)

    holds()


@pytest.mark.parametrize(
    "wrong",
    [
        "nothing forgotten",
        "own weight forgotten too",
        "exchanged",
        "share of all weights",
    ],
)
def test_other_shares_are_another_gru(wrong):
    size = (2,), 5, 2
    law_normalised_decay_is_a_gru(wrong_shares(""), np.random.default_rng(0), *size)
    rng = np.random.default_rng(0)
    with pytest.raises(AssertionError):
        law_normalised_decay_is_a_gru(wrong_shares(wrong), rng, *size)


def law_linear_attention_is_a_gru(queries, lib, seed, form):
    """The weight of a key, asked by the first query, is its weight for all."""
    rng = np.random.default_rng(seed)
    query, key = rng.normal(size=(2, 3, 6, 4))
    value = rng.normal(size=(3, 6, 2))
    q, k, v = (lib.array(x) for x in (queries(query), key, value))
    due = linkern.linear_attention(q, k, v, form=form).output
    weight = of_features(linkern.elu_plus_one)(q[:, :1, :], k)[:, 0, :, None]
    got = gated_average(shares(weight) + 0 * v, v)
    close(lib.numpy(got), lib.numpy(due))


def all_the_first(query):
    return query[:, :1] + 0 * query


@pytest.mark.parametrize("form", FORMS)
def test_linear_attention_with_one_query_is_a_gru(eager_lib, form):
    for seed in range(5):
        law_linear_attention_is_a_gru(all_the_first, eager_lib, seed, form)


def test_with_several_queries_it_is_not(eager_lib):
    with pytest.raises(AssertionError):
        law_linear_attention_is_a_gru(lambda query: query, eager_lib, 0, "auto")


def test_equal_weights_are_the_running_mean(eager_lib):
    value = np.random.default_rng(0).normal(size=(2, 6, 3))
    v = eager_lib.array(value)
    update = shares(0 * v + 1)
    counts = np.arange(1, 7)[:, None]
    close(eager_lib.numpy(update), np.broadcast_to(1 / counts, value.shape))
    key = v[..., :1] * 0 + 1
    due = linkern.linear_attention(key, key, v, feature_map=linkern.identity).output
    close(eager_lib.numpy(due), np.cumsum(value, axis=-2) / counts)
    close(eager_lib.numpy(gated_average(update, v)), eager_lib.numpy(due))


def test_weights_for_each_channel_are_rwkv4(eager_lib):
    for seed in range(5):
        key, value = np.random.default_rng(seed).normal(size=(2, 6, 3))
        update = on(eager_lib, shares)(np.exp(key))
        got = on(eager_lib, gated_average)(update, value)
        due = linkern.rwkv4(eager_lib.array(key), eager_lib.array(value)).output
        close(got, eager_lib.numpy(due))


def terms(update, candidate, first, wrong=""):
    """Key z, decay 1 - z, query 1, and the hidden state as memory."""
    ones = np.ones_like(update)
    key = ones if wrong == "key of one" else update
    query = update if wrong == "gate read too" else ones
    with np.errstate(divide="ignore"):
        log_decay = np.log(update if wrong == "decay is the gate" else 1 - update)
    memory = 0 * first if wrong == "no initial state" else first
    return (query, key, candidate, log_decay[..., 0]), memory[..., None, :]


def law_one_gate_for_all_channels_is_simple_gla(terms, lib, seed, form):
    update, _, _ = drawn(np.random.default_rng(seed), (2,), 6, 1)
    _, candidate, first = drawn(np.random.default_rng(seed), (2,), 6, 3)
    inputs, memory = terms(update, candidate, first)
    result = linkern.simple_gla(
        *(lib.array(x) for x in inputs),
        scale=1.0,
        initial_state=State(lib.array(memory), None),
        form=form,
    )
    due = loop(update, candidate, first)
    close(lib.numpy(result.output), due)
    close(lib.numpy(result.state.memory)[..., 0, :], due[..., -1, :])


@pytest.mark.parametrize("form", FORMS)
def test_a_gru_with_one_gate_for_all_channels_is_simple_gla(eager_lib, form):
    for seed in range(5):
        law_one_gate_for_all_channels_is_simple_gla(terms, eager_lib, seed, form)


@pytest.mark.parametrize(
    "wrong", ["key of one", "gate read too", "decay is the gate", "no initial state"]
)
def test_other_terms_are_not(eager_lib, wrong):
    def mutant(*inputs):
        return terms(*inputs, wrong=wrong)

    with pytest.raises(AssertionError):
        law_one_gate_for_all_channels_is_simple_gla(mutant, eager_lib, 0, "auto")
