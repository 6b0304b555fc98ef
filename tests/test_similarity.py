"""Similarities: positive semidefinite, and equal to their formulas.

Each law is a function of an implementation. It holds for the library, and is shown to
fail for wrong implementations, which are named for their mistakes.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import linkern
from linkern import feature_maps, similarity
from linkern.approximation import approximation_error

U = 2.0**-53
SEEDS = st.integers(0, 2**16)
SIMILARITIES = {
    "exponential": similarity.exponential(),
    "exponential, scale": similarity.exponential(scale=0.3),
    "of elu + 1": similarity.of_features(linkern.elu_plus_one),
    "of hedgehog": similarity.of_features(feature_maps.hedgehog),
    "of identity": similarity.of_features(linkern.identity),
    "of taylor": similarity.of_features(feature_maps.taylor),
    "polynomial": similarity.polynomial(),
    "polynomial, degree 3": similarity.polynomial(degree=3, offset=0.5),
    "polynomial, no offset": similarity.polynomial(degree=1, offset=0.0),
    "rbf": similarity.rbf(),
    "rbf, wide": similarity.rbf(bandwidth=3.0),
    "taylor": similarity.taylor(),
    "taylor, scale": similarity.taylor(scale=1.0),
}
EVERY_SIMILARITY = pytest.mark.parametrize("name", SIMILARITIES)


def vectors(seed, *shape, spread=1.0):
    return np.random.default_rng(seed).normal(size=shape) * spread


# Kernels.


def law_symmetric_and_positive_semidefinite(kernel, x):
    """Gram matrices have no negative eigenvalue, up to rounding.

    An entry is a function of sums of K or F products, computed with an error of
    ``c u (k_ii k_jj)^0.5`` with ``c = 8 (K + F + 4) (1 + |x|^2)``: a dot product errs
    by K u |q| |k|, an exponential multiplies that by the size of its exponent, and
    |k_ij| <= (k_ii k_jj)^0.5. The norm of the matrix of those is ``c u trace``;
    eigenvalues move by no more, and are computed to n u trace.
    """
    gram = kernel(x, x)
    size = np.sqrt(np.maximum(np.diagonal(gram), 0))
    square = (x * x).sum(-1).max(initial=0)
    c = 8 * (x.shape[-1] + 30 + 4) * (1 + square)
    assert (abs(gram - gram.T) <= 2 * c * U * size[:, None] * size).all()
    smallest = np.linalg.eigvalsh((gram + gram.T) / 2).min()
    assert smallest >= -(c + len(x)) * U * np.trace(gram)


NO_KERNELS = {
    "hyperbolic tangent": lambda q, k: np.tanh(q @ k.T + 1),
    "squared distance": lambda q, k: ((q[:, None] - k) ** 2).sum(-1),
    "negative offset": lambda q, k: q @ k.T - 1,
    "square less an offset": lambda q, k: (q @ k.T) ** 2 - 0.5,
    "exponential of the negative": lambda q, k: np.exp(-q @ k.T),
    "box": lambda q, k: (abs(q[:, None] - k).max(-1) < 1).astype(float),
    "not symmetric": lambda q, k: np.exp(q @ np.roll(k, 1, axis=-1).T),
    "one-sided features": lambda q, k: linkern.elu_plus_one(q) @ k.T,
    "softmax": lambda q, k: np.exp(q @ k.T) / np.exp(q @ k.T).sum(-1, keepdims=True),
}


@EVERY_SIMILARITY
@settings(max_examples=20)
@given(seed=SEEDS, length=st.integers(1, 9), key_dim=st.integers(1, 5))
def test_gram_matrices_are_positive_semidefinite(
    eager_lib, name, seed, length, key_dim
):
    def kernel(q, k):
        arrays = (eager_lib.array(x) for x in (q, k))
        return eager_lib.numpy(SIMILARITIES[name](*arrays))

    x = vectors(seed, length, key_dim)
    law_symmetric_and_positive_semidefinite(kernel, x)
    # Neighbours and equals make matrices that are all but singular.
    near = np.concatenate([x, x * (1 + 1e-7), x])
    law_symmetric_and_positive_semidefinite(kernel, near)


@pytest.mark.parametrize("name", NO_KERNELS)
@pytest.mark.parametrize("seed", range(3))
def test_what_is_no_kernel_is_seen(name, seed):
    x = vectors(seed, 30, 3)
    x = np.concatenate([np.zeros((1, 3)), x])
    with pytest.raises(AssertionError):
        law_symmetric_and_positive_semidefinite(NO_KERNELS[name], x)


def test_some_kernel_of_a_feature_map_is_not_that_of_another():
    x = vectors(0, 8, 4)
    elu_kernel = similarity.of_features(linkern.elu_plus_one)
    law_symmetric_and_positive_semidefinite(elu_kernel, x)
    error = approximation_error(linkern.elu_plus_one, similarity.exponential(), x, x)
    assert error.root_mean_square > 0.5


# Values.


def law_values(kernel, formula, q, k):
    """Evaluations agree with the formula in extended precision."""
    exact = formula(*(x.astype(np.longdouble) for x in (q, k)))
    got = kernel(q, k)
    assert got.shape == (*np.broadcast_shapes(q.shape[:-2], k.shape[:-2]), 5, 4)
    # Scores of K = 3 products of up to 30, then a few roundings; offsets can cancel.
    assert (abs(got - exact) <= 64 * U * (1 + abs(exact))).all()


def score(q, k):
    return (q[..., :, None, :] * k[..., None, :, :]).sum(-1)


FORMULAS = {
    "exponential": (
        similarity.exponential(),
        similarity.exponential(scale=3**-0.25),
        lambda q, k: np.exp(score(q, k) / np.sqrt(np.longdouble(3))),
    ),
    "rbf": (
        similarity.rbf(2.0),
        similarity.rbf(2.0**0.5),
        lambda q, k: np.exp(
            -((q[..., :, None, :] - k[..., None, :, :]) ** 2).sum(-1) / 8
        ),
    ),
    "polynomial": (
        similarity.polynomial(3, 0.5),
        similarity.polynomial(3, 0.5**0.5),
        lambda q, k: (score(q, k) + 0.5) ** 3,
    ),
    "taylor": (
        similarity.taylor(0.5),
        similarity.polynomial(2, 1.0),
        lambda q, k: 1 + score(q, k) / 2 + score(q, k) ** 2 / 8,
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
@settings(max_examples=20)
@given(seed=SEEDS)
def test_similarities_are_their_formulas(name, seed):
    kernel, mutant, formula = FORMULAS[name]
    q, k = vectors(seed, 2, 1, 5, 3, spread=0.8), vectors(seed + 1, 3, 4, 3, spread=0.8)
    law_values(kernel, formula, q, k)
    with pytest.raises(AssertionError):
        law_values(mutant, formula, q, k)


@EVERY_SIMILARITY
def test_similarities_keep_the_dtype(eager_lib, name):
    x = vectors(1, 3, 2).astype(np.float32)
    got = eager_lib.numpy(SIMILARITIES[name](eager_lib.array(x), eager_lib.array(x)))
    assert got.dtype == np.float32
    exact = SIMILARITIES[name](*[x.astype(np.float64)] * 2)
    assert np.allclose(got, exact, rtol=2.0**-18, atol=2.0**-18)
    half = SIMILARITIES[name](*[x.astype(np.float16)] * 2)
    assert half.dtype == np.float16


def law_neighbours_are_told_apart(kernel):
    """The Gaussian similarity of close vectors far from the origin is accurate."""
    far, near = np.full((1, 2), 2.0**20), np.full((1, 2), 2.0**20 + 2.0**-10)
    exact = np.exp(-(2.0**-20))
    assert abs(kernel(far, near)[0, 0] - exact) <= 4 * U


def test_distances_do_not_cancel():
    def expanded(q, k):
        squares = (q * q).sum(-1)[:, None] + (k * k).sum(-1)
        return np.exp(-(squares - 2 * q @ k.T) / 2)

    law_neighbours_are_told_apart(similarity.rbf())
    with pytest.raises(AssertionError):
        law_neighbours_are_told_apart(expanded)


def law_at_least_a_half(kernel, x):
    assert (kernel(x, -x) >= 0.5).all()


@given(seed=SEEDS, dtype=st.sampled_from(["float32", "float64"]))
def test_the_taylor_similarity_is_at_least_a_half(seed, dtype):
    x = np.concatenate([np.ones((1, 1)), 1 + vectors(seed, 50, 1, spread=1e-4)])
    x = x.astype(dtype)  # so that scores are near -1, where it is smallest
    law_at_least_a_half(similarity.taylor(), x)
    with pytest.raises(AssertionError):
        law_at_least_a_half(lambda q, k: 1 + q @ k.T + (q @ k.T) ** 2 / 2.01, x)


def test_similarities_are_differentiable(torch):
    q, k = (torch.asarray(vectors(s, 3, 2)).requires_grad_() for s in (0, 1))
    for kernel in SIMILARITIES.values():
        assert torch.autograd.gradcheck(kernel, (q, k))


# Errors.

ONES = np.ones((2, 3))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: similarity.exponential(scale=0), ValueError, "`scale` must be posi"),
        (lambda: similarity.taylor(scale=-1.0), ValueError, "`scale` must be positive"),
        (lambda: similarity.taylor(scale="1"), TypeError, "`scale` must be a real num"),
        (lambda: similarity.rbf(float("inf")), ValueError, "`bandwidth` must be posit"),
        (lambda: similarity.rbf(True), TypeError, "`bandwidth` must be a real"),
        (lambda: similarity.polynomial(0), ValueError, "`degree` must be a positive"),
        (
            lambda: similarity.polynomial(2, -1.0),
            ValueError,
            "`offset` must be zero or positive",
        ),
        (lambda: similarity.of_features(3), TypeError, "`feature_map` must be a call"),
        (
            lambda: similarity.rbf()(ONES, ONES[0]),
            ValueError,
            r"`key` must have shape \(..., length, dim\)",
        ),
        (
            lambda: similarity.rbf()(ONES, ONES[:, :2]),
            ValueError,
            "must have the same key dimension",
        ),
        (
            lambda: similarity.rbf()(ONES[None].repeat(2, 0), ONES[None].repeat(3, 0)),
            ValueError,
            "the leading axes of query and key must broadcast",
        ),
        (
            lambda: similarity.rbf()(ONES, ONES.astype(np.float32)),
            TypeError,
            "must have the same dtype",
        ),
        (lambda: similarity.rbf()([1.0], ONES), TypeError, "`query` must be an array"),
        (
            lambda: similarity.of_features(lambda x: x[..., 0])(ONES, ONES),
            ValueError,
            "`feature_map` must keep every axis but the last",
        ),
    ],
)
def test_mistakes_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call()
