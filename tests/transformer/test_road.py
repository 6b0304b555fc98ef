"""Order, the non-linear layer, and what all functions of the road do with inputs."""

import numpy as np
import pytest

from linkern.array import namespace
from linkern.similarity import exponential
from linkern.transformer.gru import GRU, gru
from linkern.transformer.positions import sinusoidal_positions
from linkern.transformer.road import (
    gated_average,
    gru_weights,
    mixed_then_transformed,
    order_gap,
    shares,
    similarity_weights,
    unrolled,
    weighted_candidates,
)
from tests.transformer.road_problems import (
    BOUND,
    attending,
    close,
    drawn,
    free,
    loop,
    on,
)


def test_attention_cannot_tell_the_order_and_a_gru_can(eager_lib):
    rng = np.random.default_rng(0)
    x, order = eager_lib.array(rng.normal(size=(2, 6, 4))), rng.permutation(6).tolist()
    parameters = GRU.create(4, 3, rng=0, like=x)
    everywhere = attending(eager_lib, causal=False)
    positions = sinusoidal_positions(6, 4, like=x)
    assert float(order_gap(everywhere, x, order)) < BOUND
    # Far above rounding: what is reordered is of the size of 1.
    assert float(order_gap(lambda x: gru(parameters, x).output, x, order)) > 1e-2
    assert float(order_gap(lambda x: everywhere(x + positions), x, order)) > 1e-2
    assert float(order_gap(attending(eager_lib, causal=True), x, order)) > 1e-2


def test_the_last_causal_row_sees_a_set_of_tokens(eager_lib):
    x = eager_lib.array(np.random.default_rng(0).normal(size=(2, 6, 4)))
    parameters = GRU.create(4, 3, rng=0, like=x)
    order = [3, 0, 4, 1, 2, 5]  # the last token stays where it is
    causal = attending(eager_lib, causal=True)
    assert float(order_gap(lambda x: causal(x)[..., -1:, :] + 0 * x, x, order)) < BOUND

    def last(x):
        return gru(parameters, x).output[..., -1:, :] + 0 * x[..., :3]

    assert float(order_gap(last, x, order)) > 1e-2


# The non-linear layer after.


def test_tanh_commutes_only_with_a_choice_of_one_candidate(eager_lib):
    rng = np.random.default_rng(0)
    weights, candidate = free(rng, (), 4, 2)
    average = on(eager_lib, weighted_candidates)
    gap = average(weights, np.tanh(candidate)) - np.tanh(average(weights, candidate))
    assert abs(gap).max() > 1e-2
    choice = np.eye(5)[rng.integers(5, size=(2, 4))]
    close(average(choice, np.tanh(candidate)), np.tanh(average(choice, candidate)))


def law_the_non_linear_function_comes_last(layer, lib):
    x = np.random.default_rng(0).normal(size=(2, 6, 4))
    mix, tokens = attending(lib, causal=True), lib.array(x)
    got = layer(mix, namespace(tokens).tanh, tokens)
    close(lib.numpy(got), np.tanh(lib.numpy(mix(tokens)) + x))


def test_the_non_linear_function_comes_last(eager_lib):
    law_the_non_linear_function_comes_last(mixed_then_transformed, eager_lib)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda mix, transform, x: transform(mix(x)),
        lambda mix, transform, x: transform(mix(x)) + x,
        lambda mix, transform, x: mix(transform(x)) + x,
        lambda mix, transform, x: mix(transform(x + x)),
    ],
)
def test_other_orders_are_another_layer(eager_lib, wrong):
    with pytest.raises(AssertionError):
        law_the_non_linear_function_comes_last(wrong, eager_lib)


def test_gradients_of_torch_are_those_of_differences(torch):
    update, candidate, first = drawn(np.random.default_rng(2), (), 3, 2)
    inside = np.where((update == 0) | (update == 1), 0.5, update)
    leaves = [torch.tensor(x, requires_grad=True) for x in (inside, candidate, first)]
    assert torch.autograd.gradcheck(unrolled, leaves)
    assert torch.autograd.gradcheck(gated_average, leaves)


@pytest.mark.parametrize("function", [unrolled, gated_average])
def test_no_tokens_and_leading_axes_that_broadcast(function):
    assert function(np.ones((2, 0, 3)), np.ones((2, 0, 3))).shape == (2, 0, 3)
    update, candidate, first = drawn(np.random.default_rng(0), (2,), 4, 3)
    got = function(update[0], candidate, first[0])
    close(got, loop(np.stack([update[0]] * 2), candidate, np.stack([first[0]] * 2)))


def test_half_precision_is_computed_in_float32(torch):
    half = torch.full((4, 2), 0.3, dtype=torch.bfloat16)
    for function in (unrolled, gated_average):
        found = function(half, half)
        due = function(half.to(torch.float32), half.to(torch.float32))
        assert found.dtype == torch.bfloat16
        assert torch.equal(found, due.to(torch.bfloat16))
    assert gru_weights(half).dtype == torch.float32
    assert weighted_candidates(half[None, :, :], half[:2]).dtype == torch.bfloat16
    assert shares(half).dtype == torch.bfloat16


ONE = np.ones((2, 3))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: gru_weights(2 * ONE), r"`update` must be in \[0, 1\]"),
        (lambda: gated_average(2 * ONE, ONE), r"`update` must be in \[0, 1\]"),
        (lambda: gru_weights(ONE[0]), r"`update` must have shape \(..., T, D\)"),
        (lambda: unrolled(ONE, ONE[:1]), "`update` and `candidate` must have the same"),
        (
            lambda: unrolled(np.ones((2, 2, 3)), ONE, np.eye(3)),
            "leading axes of update, candidate",
        ),
        (lambda: unrolled(ONE, ONE, ONE[:, :2]), "`initial_hidden` must have shape"),
        (lambda: gated_average(ONE, ONE, form="x"), "`form` must be one of"),
        (lambda: weighted_candidates(-ONE, ONE.T), "`weights` must not be negative"),
        (lambda: weighted_candidates(ONE, ONE), "`weights` must have shape"),
        (lambda: weighted_candidates(np.ones((2, 1, 2)), ONE), "that divide 3, got 2"),
        (lambda: shares(-ONE), "`weight` must not be negative"),
        (lambda: shares(ONE, ONE), "`log_decay` must be a natural logarithm"),
        (lambda: order_gap(abs, ONE, [0, 0]), "`order` must be a permutation of 0..1"),
        (
            lambda: similarity_weights(ONE, ONE[:1], exponential()),
            "same length .axis -2. when `causal`",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
