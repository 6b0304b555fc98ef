"""Errors of approximation, for exact, unbiased and biased feature maps.

Each law is a function of an implementation. It holds for the library, and is shown to
fail for wrong implementations, which are named for their mistakes.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import linkern
from linkern import feature_maps, similarity
from linkern.approximation import (
    ApproximationError,
    approximation_curve,
    approximation_error,
)

U = 2.0**-53
SEEDS = st.integers(0, 2**16)
ONES = np.ones((2, 3))


def vectors(seed, *shape, spread=1.0):
    return np.random.default_rng(seed).normal(size=shape) * spread


def law_of_exact_features(feature_map, kernel, x):
    """Exact features have rounding errors alone: F products for each pair."""
    error = approximation_error(feature_map, kernel, x, x)
    assert error.largest <= 2000 * U
    assert error.root_mean_square <= error.largest


@settings(max_examples=20)
@given(seed=SEEDS, degree=st.integers(1, 3), offset=st.sampled_from([0.0, 0.7]))
def test_features_of_polynomials_are_exact(eager_lib, seed, degree, offset):
    x = eager_lib.array(vectors(seed, 6, 3))
    polynomial = feature_maps.polynomial(degree, offset)
    law_of_exact_features(polynomial, similarity.polynomial(degree, offset), x)
    law_of_exact_features(feature_maps.taylor, similarity.taylor(1.0), x)
    for feature_map, kernel in (
        (polynomial, similarity.polynomial(degree, offset + 0.1)),
        (feature_maps.taylor, similarity.taylor()),
        (feature_maps.taylor, similarity.exponential(1.0)),
    ):
        with pytest.raises(AssertionError):
            law_of_exact_features(feature_map, kernel, x)


def scaled(kernel, factor):
    return lambda q, k: kernel(q, k) * factor


def law_error_is_relative(measure, x, y):
    """Errors are known for a similarity with a wrong factor, or one wrong entry."""
    exact = similarity.of_features(linkern.exp)
    values = exact(x, y)
    size = np.sqrt((values**2).mean())
    for factor in (4.0, 0.5):  # too large, and too small
        uniform = measure(linkern.exp, scaled(exact, factor), x, y)
        relative = abs(1 - 1 / factor)
        largest = relative * values.max() / size
        assert np.allclose(uniform.root_mean_square, relative, rtol=1e-12)
        assert np.allclose(uniform.largest, largest, rtol=1e-12)

    def spike(q, k):
        result = exact(q, k)
        result[0, 0] += 2 * size
        return result

    changed = np.sqrt((spike(x, y) ** 2).mean())
    single = measure(linkern.exp, spike, x, y)
    assert np.allclose(single.largest, 2 * size / changed, rtol=1e-12)
    mean = 2 * size / values.size**0.5 / changed
    assert np.allclose(single.root_mean_square, mean, rtol=1e-12)


def mutant_of(numerator, largest):
    """Return a measure with other reductions."""

    def measure(feature_map, kernel, x, y):
        error = similarity.of_features(feature_map)(x, y) - kernel(x, y)
        size = np.sqrt((kernel(x, y) ** 2).mean())
        return ApproximationError(numerator(error) / size, largest(error) / size)

    return measure


def rms(error):
    return np.sqrt((error**2).mean())


@pytest.mark.parametrize("seed", range(3))
def test_errors_are_relative_to_the_root_mean_square(seed):
    x, y = vectors(seed, 5, 3), vectors(seed + 1, 4, 3)
    law_error_is_relative(approximation_error, x, y)
    law_error_is_relative(mutant_of(rms, lambda e: abs(e).max()), x, y)
    for mutant in (
        mutant_of(lambda e: abs(e).mean(), lambda e: abs(e).max()),
        mutant_of(rms, np.max),
        mutant_of(rms, lambda e: -e.min()),
        mutant_of(lambda e: np.sqrt((e**2).sum()), lambda e: abs(e).max()),
    ):
        with pytest.raises(AssertionError):
            law_error_is_relative(mutant, x, y)


def law_error_vanishes_with_the_dimension(feature_map, kernel):
    """The error of a good map falls as the dimension grows."""
    errors = []
    for key_dim in (4, 16, 64):
        x, y = vectors(1, 20, key_dim), vectors(2, 20, key_dim)
        error = approximation_error(feature_map, kernel, x, y)
        errors.append(error.root_mean_square)
    assert errors[-1] < 0.5 * errors[0]


def test_elu_plus_one_is_the_map_of_a_kernel_but_not_of_the_exponential():
    kernel = similarity.exponential()
    with pytest.raises(AssertionError):
        law_error_vanishes_with_the_dimension(linkern.elu_plus_one, kernel)

    def normalised(x):
        """Divide by the number of features, to exclude a wrong factor."""
        return linkern.elu_plus_one(x) / x.shape[-1] ** 0.5

    with pytest.raises(AssertionError):
        law_error_vanishes_with_the_dimension(normalised, kernel)

    def sampled(x):
        """Return random features of the exponential, as many as dimension squared."""
        key_dim = x.shape[-1]
        return feature_maps.positive_random(
            key_dim, 4 * key_dim**2, scale=0.1 / key_dim, rng=0
        )(x)

    def at_a_distance(q, k):
        return similarity.exponential(scale=0.1 / q.shape[-1])(q, k)

    law_error_vanishes_with_the_dimension(sampled, at_a_distance)


def test_the_best_factor_does_not_make_it_the_exponential():
    """Normalized weights, where factors cancel, still differ."""
    x, y = vectors(3, 20, 16, spread=2.0), vectors(4, 20, 16, spread=2.0)
    rows = [
        s(x, y) / s(x, y).sum(-1, keepdims=True)
        for s in (
            similarity.exponential(),
            similarity.of_features(linkern.elu_plus_one),
        )
    ]
    assert abs(rows[0] - rows[1]).sum(-1).mean() > 0.5  # of at most 2


def test_curves_tell_bias_from_variance():
    x = vectors(5, 6, 3, spread=0.5)

    def drawn(count, rng):
        return feature_maps.random_fourier(3, count, rng=rng)

    def bent(count, rng):
        return feature_maps.random_fourier(3, count, bandwidth=1.5, rng=rng)

    options = {"repeats": 100, "rng": 6}
    curve = approximation_curve(drawn, similarity.rbf(), x, x, [8, 128], **options)
    assert curve.feature_counts == (8, 128)
    for spread, bias, largest in zip(
        curve.root_mean_square, curve.bias, curve.largest, strict=True
    ):
        # The mean of 100 errors is a tenth of one of them; pairs share their draws.
        assert bias < 0.2 * spread
        assert spread < largest
    biased = approximation_curve(bent, similarity.rbf(), x, x, [8, 128], **options)
    assert biased.bias[1] > 0.8 * biased.root_mean_square[1]
    assert biased.bias[1] > 0.9 * biased.bias[0]


def test_curves_of_one_number_are_the_same_curve():
    x = vectors(7, 4, 2)

    def measured(rng):
        return approximation_curve(
            lambda count, rng: feature_maps.positive_random(2, count, rng=rng),
            similarity.exponential(1.0),
            x,
            x,
            [4],
            repeats=2,
            rng=rng,
        )

    assert measured(1) == measured(1) == measured(np.random.default_rng(1))
    assert measured(1) != measured(2)


def test_one_draw_of_a_curve_is_the_error_of_that_map(eager_lib):
    x = eager_lib.array(vectors(8, 4, 2))
    kernel = similarity.exponential()
    curve = approximation_curve(
        lambda count, rng: linkern.elu_plus_one, kernel, x, x, [2, 3], repeats=1
    )
    error = approximation_error(linkern.elu_plus_one, kernel, x, x)
    assert np.allclose(curve.root_mean_square, float(error.root_mean_square))
    assert np.allclose(curve.largest, float(error.largest))
    assert np.allclose(curve.bias, float(error.root_mean_square))


def test_the_error_is_differentiable(torch):
    """The gradient can be used to learn a projection."""
    x = torch.asarray(vectors(9, 5, 3))
    matrix = torch.asarray(vectors(10, 3, 4)).requires_grad_()

    def error(matrix):
        def feature_map(x):
            return feature_maps.hedgehog(x, projection=matrix)

        kernel = similarity.exponential()
        return approximation_error(feature_map, kernel, x, x).root_mean_square

    assert torch.autograd.gradcheck(error, (matrix,))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: approximation_error(
                linkern.exp, lambda q, k: (q @ k.T).sum(), ONES, ONES
            ),
            ValueError,
            "`similarity` must return one number for each query and key",
        ),
        (
            lambda: approximation_curve(
                lambda count, rng: linkern.exp, similarity.rbf(), ONES, ONES, [0]
            ),
            ValueError,
            "`feature_counts` must be a positive integer",
        ),
        (
            lambda: approximation_curve(
                lambda count, rng: linkern.exp,
                similarity.rbf(),
                ONES,
                ONES,
                [1],
                repeats=0,
            ),
            ValueError,
            "`repeats` must be a positive integer",
        ),
    ],
)
def test_mistakes_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call()
