"""The explicit matrix of weights: for every operator that is linear in its values."""

from functools import partial

import numpy as np
import pytest

import linkern
from linkern.analysis.attention_matrix import attention_weights
from linkern.attention import (
    kernel_attention,
    lsh_attention,
    softmax_attention,
    sparse_attention,
)
from linkern.similarity import exponential
from tests.attention.calling import draw, through
from tests.operators.problems import NAMES, operator, problem

BY_CHANNEL = ("hgrn", "rwkv4", "gdn2")
LINEAR = tuple(name for name in NAMES if name not in ("oja", *BY_CHANNEL))
NORMALISED = ("abc", "based", "rebased", "rwkv4")
# The product with W sums in another order than the operator: weights and values are
# below 100, and solves lose a few digits more than sums.
BOUND = 1e-9

QUADRATIC = {
    "softmax": (softmax_attention, {}),
    "softmax in blocks": (softmax_attention, {"block_size": 2, "causal": False}),
    "kernel": (kernel_attention, {"similarity": exponential()}),
    "local": (sparse_attention, {"pattern": "local", "window": 3}),
    "strided": (sparse_attention, {"pattern": "strided", "window": 3}),
    "fixed": (sparse_attention, {"pattern": "fixed", "window": 3, "causal": False}),
    "linear": (linkern.linear_attention, {}),
    "linear, both directions": (linkern.linear_attention, {"causal": False}),
    "linear, token by token": (linkern.linear_attention, {"form": "recurrent"}),
}


def near(found, due):
    found, due = np.asarray(found), np.asarray(due)
    assert found.shape == due.shape
    assert abs(found - due).max(initial=0) <= BOUND


def output_of(result):
    return getattr(result, "output", result)


# Each law takes the function that gives the weights, and one call.


def law_the_product_is_the_output(weights_of, op, inputs):
    due = output_of(op(**inputs))
    weights = weights_of(op, **inputs)
    if weights.ndim == due.ndim:
        near(weights @ inputs["value"], due)
    else:
        near(np.einsum("...vts,...sv->...tv", weights, inputs["value"]), due)


def law_rows_sum_to_one(weights_of, op, inputs):
    sums = weights_of(op, **inputs).sum(-1)
    near(sums, np.ones(sums.shape))


def law_later_tokens_have_no_weight(weights_of, op, inputs):
    weights = weights_of(op, **inputs)
    length, source = weights.shape[-2:]
    steps = source // length
    ahead = np.arange(source)[None, :] // steps > np.arange(length)[:, None]
    assert not weights[..., ahead].any()


def law_a_token_in_the_diagonal_sees_itself(weights_of, op, inputs):
    weights = weights_of(op, **inputs)
    assert (np.diagonal(weights, axis1=-2, axis2=-1) != 0).all()


def family(name):
    inputs = {k: x.copy() for k, x in problem(name, np.random.default_rng(3)).items()}
    return operator(name), inputs


def quadratic(name):
    """A function of arrays alone, and its inputs."""
    op, options = QUADRATIC[name]
    query, key, value = draw(0, (2, 7, 4), (2, 7, 4), (2, 7, 3))
    return partial(op, **options), {"query": query, "key": key, "value": value}


# What one might write instead.
MUTANTS = {
    "transposed": lambda op, **x: np.swapaxes(attention_weights(op, **x), -1, -2),
    "moved on by one": lambda op, **x: np.roll(attention_weights(op, **x), 1, axis=-1),
    "not normalised": lambda op, **x: 2 * attention_weights(op, **x),
    "first column for all": lambda op, **x: (
        0 * attention_weights(op, **x) + attention_weights(op, **x)[..., :1]
    ),
}
LAWS = {
    law_the_product_is_the_output: tuple(MUTANTS),
    law_rows_sum_to_one: ("not normalised", "transposed"),
    law_later_tokens_have_no_weight: ("transposed", "moved on by one"),
    law_a_token_in_the_diagonal_sees_itself: ("moved on by one",),
}


@pytest.mark.parametrize("name", [*LINEAR, *BY_CHANNEL])
def test_operators_of_the_family(name):
    op, inputs = family(name)
    law_the_product_is_the_output(attention_weights, op, inputs)
    law_later_tokens_have_no_weight(attention_weights, op, inputs)
    if name in NORMALISED:
        law_rows_sum_to_one(attention_weights, op, inputs)


@pytest.mark.parametrize("name", QUADRATIC)
def test_quadratic_and_linear_attention(name):
    op, inputs = quadratic(name)
    law_the_product_is_the_output(attention_weights, op, inputs)
    law_rows_sum_to_one(attention_weights, op, inputs)
    law_a_token_in_the_diagonal_sees_itself(attention_weights, op, inputs)
    if op.keywords.get("causal", True):
        law_later_tokens_have_no_weight(attention_weights, op, inputs)


@pytest.mark.parametrize("causal", [True, False])
def test_hashed_attention(causal):
    query, value = draw(0, (2, 9, 4), (9, 3))
    op = partial(lsh_attention, chunk_size=3, rounds=2, rng=1, causal=causal)
    inputs = {"query": query, "value": value}
    law_rows_sum_to_one(attention_weights, op, inputs)
    weights = attention_weights(op, **inputs)
    near(weights @ value, op(**inputs))
    if causal:
        law_later_tokens_have_no_weight(attention_weights, op, inputs)
    # Whoever sees others does not see itself.
    own = np.diagonal(weights, axis1=-2, axis2=-1)
    assert np.isin(own, (0.0, 1.0)).all()


@pytest.mark.parametrize(
    ("law", "mutant"), [(law, name) for law, names in LAWS.items() for name in names]
)
def test_law_fails_on(law, mutant):
    with pytest.raises(AssertionError):
        law(MUTANTS[mutant], *quadratic("softmax"))


def test_several_values_for_each_token():
    op, inputs = family("gated_delta_product")
    length = inputs["query"].shape[-2]
    weights = attention_weights(op, **inputs)
    assert weights.shape[-2:] == (length, inputs["value"].shape[-2])
    assert weights.shape[-1] > length


@pytest.mark.parametrize("name", BY_CHANNEL)
def test_channels_of_their_own(name):
    op, inputs = family(name)
    weights = attention_weights(op, **inputs)
    *lead, length, dim = inputs["value"].shape
    assert weights.shape == (*lead, dim, length, length)
    # The channels do differ: one matrix would not do.
    assert abs(weights[..., :1, :, :] - weights).max() > 1e-3


def test_channels_with_leading_axes_that_differ():
    key, value = draw(0, (2, 1, 5, 4), (3, 5, 4))
    weights = attention_weights(linkern.rwkv4, key, value)
    assert weights.shape == (2, 3, 4, 5, 5)
    due = linkern.rwkv4(key, value).output
    near(np.einsum("...vts,...sv->...tv", weights, value), due)


def test_heads_that_share_keys_and_packed_sequences():
    query, key, value = draw(0, (2, 6, 3), (2, 6, 3), (4, 6, 2))
    gate = -abs(draw(1, (4, 6))[0])
    weights = attention_weights(linkern.simple_gla, query, key, value, gate)
    assert weights.shape == (4, 6, 6)
    near(weights @ value, linkern.simple_gla(query, key, value, gate).output)
    packed = attention_weights(
        linkern.simple_gla, query, key, value, gate, cu_seqlens=[0, 2, 6]
    )
    assert not packed[..., 2:, :2].any()
    assert (packed[..., 2:, 2] != 0).all()


def test_any_function_that_is_linear_in_its_values(eager_lib):
    def mean(value, times):
        return 0 * value + times * value[-1:, :]

    call = through(eager_lib, partial(attention_weights, mean))
    found = call(np.zeros((3, 2)), times=2.0)
    assert np.array_equal(found, [[0, 0, 2]] * 3)


def test_a_function_with_the_name_of_an_operator_is_not_taken_for_it():
    def oja(value, times):
        return times * value

    def hgrn(value, log_decay):
        return value + 0 * log_decay

    value = np.zeros((3, 2))
    assert np.array_equal(attention_weights(oja, value, 2.0), 2 * np.eye(3))
    assert attention_weights(hgrn, value, np.zeros((3, 1))).shape == (3, 3)


def test_a_compiled_operator_has_its_channels_and_its_refusal(jax):
    x = jax.numpy.ones((3, 2))
    weights = attention_weights(jax.jit(linkern.hgrn), x, -x)
    near(np.asarray(weights), attention_weights(linkern.hgrn, np.ones((3, 2)), -X[:3]))
    with pytest.raises(TypeError, match="linear in its values, got oja"):
        attention_weights(jax.jit(linkern.oja), x, x, x)


def test_every_library(eager_lib):
    inputs = draw(0, (5, 3), (5, 3), (5, 2))
    for op in (linkern.linear_attention, linkern.gdn2, softmax_attention):
        call = through(eager_lib, partial(attention_weights, op))
        near(call(*inputs), attention_weights(op, *inputs))


def test_no_tokens():
    inputs = draw(0, (2, 0, 3), (2, 0, 3), (2, 0, 4))
    for op, shape in ((linkern.gla, (2, 0, 0)), (linkern.gdn2, (2, 4, 0, 0))):
        assert attention_weights(op, *inputs).shape == shape


X = np.ones((5, 2))


@pytest.mark.parametrize(
    ("arguments", "options", "error", "sentence"),
    [
        (
            (3,),
            {},
            TypeError,
            "`op` must be a callable with an argument `value`, got 3",
        ),
        (
            (linkern.oja, X, X, X),
            {},
            TypeError,
            "linear in its values, got oja: what it",
        ),
        (
            (np.linalg.norm, X),
            {},
            TypeError,
            "`op` must take a whole sequence and have",
        ),
        (
            (linkern.linear_attention_step, None, X, X, X),
            {},
            TypeError,
            "`op` must take a whole sequence",
        ),
        (
            (linkern.gla, X, X, X),
            {"initial_state": linkern.State(np.zeros((2, 2)), None)},
            ValueError,
            "`initial_state` must be None for `attention_weights`",
        ),
        ((linkern.gla, X, X, 3), {}, TypeError, "`value` must be an array"),
        ((linkern.gla, X, X, X[0]), {}, ValueError, r"`value` must have shape \(..., "),
        ((linkern.gla, X, X), {}, TypeError, "missing a required argument: 'value'"),
    ],
)
def test_errors(arguments, options, error, sentence):
    with pytest.raises(error, match=sentence):
        attention_weights(*arguments, **options)
