"""Random feature maps: unbiased, at the rate of a mean, reproducible.

Each law is a function of an implementation. It holds for the library, and is shown to
fail for wrong implementations, which are named for their mistakes.
"""

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from linkern.approximation import approximation_curve
from linkern.feature_maps import positive_random, random_fourier
from linkern.similarity import exponential, rbf

KEY_DIM = 3
COUNTS = (16, 32, 64, 128, 256, 512, 1024)


def vectors(seed, *shape, spread=1.0):
    return np.random.default_rng(seed).normal(size=shape) * spread


def short_vectors(seed, length, key_dim=KEY_DIM):
    """Return short vectors of one norm, to avoid heavy tails of the exponentials.

    Features of a pair have the distribution of ``exp(w . z)`` with ``|z| <= 1``:
    their squares, too, have a variance that some hundred draws can average.
    """
    x = vectors(seed, length, key_dim)
    return 0.5 * x / np.linalg.norm(x, axis=-1, keepdims=True)


def fourier(count, rng, key_dim=KEY_DIM, **options):
    return random_fourier(key_dim, count, rng=rng, **options)


def positive(count, rng, key_dim=KEY_DIM, **options):
    return positive_random(key_dim, count, rng=rng, **options)


# Maps, and their kernels in expectation.
UNBIASED = {
    "fourier": (fourier, rbf()),
    "fourier, orthogonal": (partial(fourier, orthogonal=True), rbf()),
    "fourier, bandwidth": (partial(fourier, bandwidth=1.5), rbf(1.5)),
    "positive": (positive, exponential(scale=1.0)),
    "positive, orthogonal": (partial(positive, orthogonal=True), exponential(1.0)),
    "positive, hyperbolic": (partial(positive, hyperbolic=True), exponential(1.0)),
    "positive, scale": (partial(positive, scale=0.5), exponential(0.5)),
}
EVERY_MAP = pytest.mark.parametrize("name", UNBIASED)


def law_unbiased(make, kernel, count=12, draws=1500):
    """The mean over many draws is the kernel, within five of its standard errors."""
    x, y = 2 * short_vectors(1, 4), 2 * short_vectors(2, 3)
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(draws):
        feature_map = make(count, rng)
        drawn.append(feature_map(x) @ feature_map(y).T)
    standard_error = np.std(drawn, axis=0, ddof=1) / draws**0.5
    assert (abs(np.mean(drawn, axis=0) - kernel(x, y)) <= 5 * standard_error).all()


def law_rate(make, kernel):
    """The error falls with the square root of the number of features."""
    assert -0.6 <= exponent(make, kernel) <= -0.4


def exponent(make, kernel):
    x, y = short_vectors(3, 6), short_vectors(4, 6)
    curve = approximation_curve(make, kernel, x, y, COUNTS, repeats=40, rng=5)
    slope, _ = np.polyfit(np.log(COUNTS), np.log(curve.root_mean_square), 1)
    return slope


@EVERY_MAP
def test_the_mean_over_many_draws_is_the_kernel(name):
    law_unbiased(*UNBIASED[name])


@EVERY_MAP
def test_errors_fall_with_the_square_root_of_the_number_of_features(name):
    law_rate(*UNBIASED[name])


# Mistakes.


def without_sine(count, rng):
    feature_map = fourier(count, rng)
    return lambda x: feature_map(x)[..., : count // 2]


def without_quotient_by_the_count(count, rng):
    feature_map = positive(count, rng)
    return lambda x: feature_map(x) * count**0.5


def without_square_of_the_norm(count, rng):
    directions = positive(count, rng).projection
    return lambda x: np.exp(x @ directions.T) * count**-0.5


def uniform_directions(count, rng):
    """Draw orthogonal rows of one norm, the root mean square of Gaussian norms."""
    feature_map = positive(count, rng, orthogonal=True)
    norms = np.linalg.norm(feature_map.projection, axis=-1, keepdims=True)
    unit = feature_map.projection / norms
    return replace(feature_map, projection=unit * KEY_DIM**0.5)


def signs_of_the_factorisation(count, rng):
    """Take rows of Q from LAPACK, where the first entry of the first is negative."""
    blocks = rng.standard_normal((-(-count // KEY_DIM), KEY_DIM, KEY_DIM))
    rows = np.swapaxes(np.linalg.qr(blocks)[0], -1, -2).reshape(-1, KEY_DIM)[:count]
    norms = np.linalg.norm(rng.standard_normal((count, KEY_DIM)), axis=-1)
    return replace(positive(count, rng), projection=rows * norms[:, None])


def a_row_for_each_draw(count, rng):
    """Repeat one direction: unbiased, but more features do not reduce the error."""
    feature_map = positive(count, rng)
    rows = np.repeat(feature_map.projection[:1], count, axis=0)
    return replace(feature_map, projection=rows)


def independent_of_each_other(count, rng):
    """Draw the projection again at each call, so that queries and keys differ."""

    def feature_map(x):
        return fourier(count, rng)(x)

    return feature_map


BIASED = {
    "no sine": (without_sine, rbf()),
    "no quotient": (without_quotient_by_the_count, exponential(1.0)),
    "no square of the norm": (without_square_of_the_norm, exponential(1.0)),
    "bandwidth": (partial(fourier, bandwidth=1.2), rbf()),
    "scale": (positive, exponential()),
    "two projections": (independent_of_each_other, rbf()),
}


@pytest.mark.parametrize("name", BIASED)
def test_bias_is_seen(name):
    with pytest.raises(AssertionError):
        law_unbiased(*BIASED[name])
    with pytest.raises(AssertionError):
        law_rate(*BIASED[name])


@pytest.mark.parametrize("mutant", [uniform_directions, signs_of_the_factorisation])
def test_bias_of_directions_is_seen(mutant):
    with pytest.raises(AssertionError):
        law_unbiased(mutant, exponential(1.0))


def test_a_wrong_rate_is_seen():
    law_unbiased(a_row_for_each_draw, exponential(1.0))
    with pytest.raises(AssertionError):
        law_rate(a_row_for_each_draw, exponential(1.0))


# Variance.


@cache  # laws compare the same maps in several ways
def squared_errors(make, kernel, key_dim=8):
    x = short_vectors(6, 4, key_dim)  # each is a pair with itself: the longest sums
    made = partial(make, key_dim=key_dim)
    curve = approximation_curve(made, kernel, x, x, [48], repeats=600, rng=8)
    return curve.root_mean_square[0] ** 2


def law_better_than_independent(make, plain, kernel):
    """The mean squared error is smaller, by more than the noise of both estimates."""
    # Each is a mean over 600 draws, so uncertain by a few parts in a hundred.
    ours, theirs = (squared_errors(m, kernel) for m in (make, plain))
    assert ours <= 0.9 * theirs


@pytest.mark.parametrize(
    ("make", "plain", "kernel"),
    [
        (partial(fourier, orthogonal=True), fourier, rbf()),
        (partial(positive, orthogonal=True), positive, exponential(1.0)),
        (partial(positive, hyperbolic=True), positive, exponential(1.0)),
    ],
)
def test_orthogonal_and_hyperbolic_features_have_less_variance(make, plain, kernel):
    law_better_than_independent(make, plain, kernel)
    with pytest.raises(AssertionError):
        law_better_than_independent(plain, make, kernel)
    with pytest.raises(AssertionError):
        law_better_than_independent(plain, plain, kernel)


def test_the_variance_of_hyperbolic_features_is_what_the_docstring_says():
    x, y = np.asarray([[0.3, -0.2, 0.4]]), np.asarray([[0.1, 0.5, 0.2]])
    kernel, size = exponential(1.0), float(((x + y) ** 2).sum())
    curves = [
        approximation_curve(make, kernel, x, y, [16], repeats=2000, rng=9)
        for make in (positive, partial(positive, hyperbolic=True))
    ]
    plain, hyperbolic = (curve.root_mean_square[0] ** 2 for curve in curves)
    # A variance measured from 2000 draws has an error of a few percent.
    assert abs(hyperbolic / plain / (1 - np.exp(-size)) - 1) < 0.15
    exact = kernel(x, y)[0, 0] ** 2 * np.expm1(size) / 16 / kernel(x, y)[0, 0] ** 2
    assert abs(plain / exact - 1) < 0.15


# Directions and draws.


def law_orthogonal_in_blocks(projection):
    for first in range(0, len(projection), KEY_DIM):
        block = projection[first : first + KEY_DIM]
        products = block @ block.T
        apart = products - np.diag(np.diag(products))
        # Rows of Q are orthogonal to some K u, times the norms, of at most 10.
        assert (abs(apart) <= 1e-13 * 100).all()


def test_orthogonal_directions_are():
    for count in (2, 3, 7, 12):
        made = positive_random(KEY_DIM, count, orthogonal=True, rng=1)
        assert made.projection.shape == (count, KEY_DIM)
        law_orthogonal_in_blocks(made.projection)
    with pytest.raises(AssertionError):
        law_orthogonal_in_blocks(positive_random(KEY_DIM, 7, rng=1).projection)


@pytest.mark.parametrize("make", [fourier, positive])
def test_the_same_number_draws_the_same_map(make):
    x = vectors(10, 5, KEY_DIM)
    assert np.array_equal(make(8, 3)(x), make(8, 3)(x))
    assert np.array_equal(make(8, 3)(x), make(8, np.random.default_rng(3))(x))
    assert not np.allclose(make(8, 3)(x), make(8, 4)(x))
    generator = np.random.default_rng(3)
    assert not np.allclose(make(8, generator)(x), make(8, generator)(x))


@pytest.mark.parametrize("count", [2, 6, 10])
def test_as_many_features_as_asked_for(count):
    x = vectors(11, 5, KEY_DIM)
    for make, _ in UNBIASED.values():
        assert make(count, 0)(x).shape == (5, count)


def test_a_map_does_not_share_its_projection_with_the_arrays_of_a_call(torch):
    feature_map = fourier(4, 0)
    feature_map.projection.flags.writeable = False
    x = torch.asarray(vectors(12, 5, KEY_DIM))
    assert feature_map(x).shape == (5, 4)


def test_long_vectors_do_not_overflow():
    feature_map = positive_random(16, 64, rng=0)
    x = np.linspace(-1e3, 1e3, 9, dtype=np.float32)[:, None] * np.ones(16, np.float32)
    features = feature_map(x)
    largest = (feature_map.projection**2).sum(-1).max() / 2
    # An exponent of the order of 1e6 is rounded to some ones, but it is negative.
    assert np.isfinite(features).all()
    assert (features <= np.exp(largest)).all()
