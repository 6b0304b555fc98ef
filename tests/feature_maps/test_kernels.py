"""Feature maps against the products and the definitions of their papers.

Each law is a function of an implementation. It holds for the library, and is shown to
fail for wrong implementations, which are named for their mistakes.
"""

from functools import partial
from itertools import combinations_with_replacement
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkern.feature_maps import (
    cosine_reweighting,
    dpfp,
    hedgehog,
    polynomial,
    symmetric_power,
    taylor,
)

U = 2.0**-53
SEEDS = st.integers(0, 2**16)


def vectors(seed, *shape, spread=1.0):
    return np.random.default_rng(seed).normal(size=shape) * spread


# Feature maps of exact kernels.


def law_the_product_is(kernel, make, x, y):
    """``phi(x) . phi(y)`` is the kernel up to the rounding of sums of products."""
    phi_x, phi_y = make(x), make(y)
    # A dot product of F terms errs by F u times that of the absolute values; features
    # and the kernel itself are products of a few roundings each.
    gauge = abs(phi_x) @ abs(phi_y).T
    exact = kernel(x, y)
    assert (abs(phi_x @ phi_y.T - exact) <= (phi_x.shape[-1] + 32) * U * gauge).all()


def power(degree, offset):
    return lambda x, y: (x @ y.T + offset) ** degree


def second_order(x, y):
    score = x @ y.T
    return 1 + score + score**2 / 2


def near_cosine(x, y, length=40):
    i, j = (np.arange(len(z)) for z in (x, y))
    distance = i[:, None] - j
    rectified = np.maximum(x, 0) @ np.maximum(y, 0).T
    return rectified * np.cos(np.pi * distance / (2 * length))


def without_offset(x, *, degree, offset):
    return polynomial(degree=degree, offset=0.0)(x)


def offset_not_rooted(x, *, degree, offset):
    return polynomial(degree=degree, offset=offset**2)(x)


def taylor_without_half(x):
    products = (x[..., None] * x[..., None, :]).reshape(*x.shape[:-1], -1)
    return np.concatenate([np.ones((*x.shape[:-1], 1)), x, products], axis=-1)


def each_product_once(x, *, degree):
    """Products of entries, without the number of orders in which each comes up."""
    chosen = combinations_with_replacement(range(x.shape[-1]), degree)
    return np.stack([np.prod(x[:, list(entries)], axis=-1) for entries in chosen], -1)


def cosine_alone(x):
    return cosine_reweighting(40)(x)[..., : x.shape[-1]]


def cosine_of_twice_the_distance(x):
    return cosine_reweighting(20)(x)


@given(seed=SEEDS, degree=st.integers(1, 4), key_dim=st.integers(1, 4))
def test_polynomial_features_give_the_polynomial_kernel(seed, degree, key_dim):
    x, y = vectors(seed, 5, key_dim), vectors(seed + 1, 3, key_dim)
    for offset in (0.0, 0.3, 2.0):
        options = {"degree": degree, "offset": offset}
        law_the_product_is(power(**options), polynomial(**options), x, y)
        columns = key_dim + (offset > 0)
        assert polynomial(**options)(x).shape[-1] == columns**degree
    for mutant in (without_offset, offset_not_rooted):
        wrong = partial(mutant, degree=degree, offset=0.3)
        with pytest.raises(AssertionError):
            law_the_product_is(power(degree, 0.3), wrong, x, y)


@given(seed=SEEDS, degree=st.integers(1, 4), key_dim=st.integers(1, 5))
def test_symmetric_powers_give_the_power_of_the_product(seed, degree, key_dim):
    x, y = vectors(seed, 5, key_dim), vectors(seed + 1, 3, key_dim)
    phi = symmetric_power(degree)
    law_the_product_is(power(degree, 0.0), phi, x, y)
    assert phi(x).shape[-1] == comb(key_dim + degree - 1, degree)
    if degree > 1 and key_dim > 1:
        wrong = partial(each_product_once, degree=degree)
        with pytest.raises(AssertionError):
            law_the_product_is(power(degree, 0.0), wrong, x, y)


@given(seed=SEEDS, key_dim=st.integers(1, 5))
def test_taylor_features_give_the_taylor_polynomial(seed, key_dim):
    x, y = vectors(seed, 5, key_dim), vectors(seed + 1, 3, key_dim)
    law_the_product_is(second_order, taylor, x, y)
    with pytest.raises(AssertionError):
        law_the_product_is(second_order, taylor_without_half, x, y)


@given(seed=SEEDS, key_dim=st.integers(1, 5), start=st.integers(0, 30))
def test_cosine_reweighting_weighs_by_distance(seed, key_dim, start):
    x, y = (abs(vectors(seed + i, n, key_dim)) for i, n in ((0, 10), (1, 7)))
    x[0, 0] = -1.0
    law_the_product_is(near_cosine, cosine_reweighting(40, start=start), x, y)
    assert (cosine_reweighting(40, start=start)(x) >= 0).all()
    for mutant in (cosine_alone, cosine_of_twice_the_distance):
        with pytest.raises(AssertionError):
            law_the_product_is(near_cosine, mutant, x, y)


def products_of_the_paper(x, nu):
    """Return DPFP by its definition, as a loop over indices."""
    rectified = np.maximum(np.concatenate([x, -x], axis=-1), 0)
    size = rectified.shape[-1]
    return np.stack(
        [
            rectified[..., i] * rectified[..., (i + j) % size]
            for j in range(1, nu + 1)
            for i in range(size)
        ],
        axis=-1,
    )


def law_features_are_those_products(make, x, nu):
    assert np.array_equal(make(x, nu), products_of_the_paper(x, nu))


@given(seed=SEEDS, key_dim=st.integers(2, 5), nu=st.integers(1, 3))
def test_dpfp_is_the_loop_of_the_paper(seed, key_dim, nu):
    x = vectors(seed, 3, 4, key_dim)
    law_features_are_those_products(lambda x, nu: dpfp(nu)(x), x, nu)

    def padded(x, nu):
        """A wrong DPFP: shifts in zeros instead of cyclically."""
        r = np.maximum(np.concatenate([x, -x], axis=-1), 0)
        gone = [np.concatenate([r[..., j:], 0 * r[..., :j]], -1) for j in range(nu + 1)]
        return np.concatenate([r * later for later in gone[1:]], axis=-1)

    x[..., 0], x[..., -1] = 1.0, -1.0  # so that the pair across the end counts
    with pytest.raises(AssertionError):
        law_features_are_those_products(padded, x, nu)


def law_two_distributions(make, x):
    """Features are two softmaxes: positive, of sum 1, with exponentials as ratios."""
    features = make(x)
    halves = np.split(features, 2, axis=-1)
    for half, sign in zip(halves, (1, -1), strict=True):
        assert (half > 0).all()
        assert (abs(half.sum(-1) - 1) <= 16 * U).all()
        ratio = np.log(half) - np.log(half[..., :1])
        # Logarithms of numbers that are some roundings off, and of up to 30.
        assert np.allclose(ratio, sign * (x - x[..., :1]), rtol=0, atol=1e-12)


@given(seed=SEEDS, key_dim=st.integers(2, 6))
def test_hedgehog_is_two_softmaxes(seed, key_dim):
    x = vectors(seed, 3, key_dim, spread=3.0)
    law_two_distributions(hedgehog, x)
    matrix = vectors(seed, key_dim, 3)
    both = hedgehog(x, projection=matrix), hedgehog(x @ matrix)
    assert np.array_equal(*both)
    for mutant in (
        lambda x: np.exp(np.concatenate([x, -x], axis=-1)),
        lambda x: np.concatenate([hedgehog(x)[..., : x.shape[-1]]] * 2, axis=-1),
        lambda x: hedgehog(np.concatenate([x, -x], -1))[..., : 2 * x.shape[-1]],
    ):
        with pytest.raises(AssertionError):
            law_two_distributions(mutant, x)


def test_hedgehog_does_not_overflow():
    x = np.asarray([[1e4, 0.0, -1e4]])
    assert hedgehog(x).tolist() == [[1, 0, 0, 0, 0, 1]]


def test_hedgehog_takes_a_matrix_for_each_head():
    x, matrix = vectors(0, 2, 3, 5, 4), vectors(1, 3, 4, 2)
    features = hedgehog(x, projection=matrix)
    assert features.shape == (2, 3, 5, 4)
    for head in range(3):
        alone = hedgehog(x[:, head], projection=matrix[head])
        assert np.allclose(features[:, head], alone, rtol=1e-14)
    row = hedgehog(x[0, 0, 0], projection=matrix[0])
    assert np.allclose(row, features[0, 0, 0], rtol=1e-14)
