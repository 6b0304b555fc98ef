"""Feature maps: values, independence of rows, derivatives, and use.

Each law is a function of an implementation. It holds for the library, and is shown to
fail for wrong implementations, which are named for their mistakes.
"""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import linkern
from linkern import feature_maps, oracle
from linkern.feature_maps import (
    cosine_reweighting,
    dpfp,
    hedgehog,
    polynomial,
    positive_random,
    random_fourier,
    squared_relu,
    symmetric_power,
    taylor,
)

U = 2.0**-53
SEEDS = st.integers(0, 2**16)
KEY_DIM = 4

# Maps of the oracle, with its bound on their error.
POINTWISE = ["elu_plus_one", "exp", "identity", "relu"]

# Every other map, ready to be called on vectors of 4 entries.
MADE = {
    "cosine_reweighting": cosine_reweighting(64, start=3),
    "dpfp": dpfp(nu=2),
    "hedgehog": hedgehog,
    "polynomial": polynomial(degree=3, offset=0.5),
    "symmetric_power": symmetric_power(degree=3),
    "positive_random": positive_random(KEY_DIM, 6, scale=0.5, rng=1),
    "random_fourier": random_fourier(KEY_DIM, 6, bandwidth=2.0, rng=2),
    "squared_relu": squared_relu,
    "taylor": taylor,
}
MAPS = {**{name: getattr(feature_maps, name) for name in POINTWISE}, **MADE}
OTHERS = {
    **MADE,
    "hedgehog, projected": partial(
        hedgehog, projection=np.random.default_rng(3).normal(size=(KEY_DIM, 3))
    ),
    "positive_random, hyperbolic": positive_random(
        KEY_DIM, 6, hyperbolic=True, orthogonal=True, rng=4
    ),
    "random_fourier, orthogonal": random_fourier(KEY_DIM, 10, orthogonal=True, rng=5),
}
POSITIVE = [
    "elu_plus_one",
    "exp",
    "hedgehog",
    "hedgehog, projected",
    "positive_random",
    "positive_random, hyperbolic",
]
NOT_NEGATIVE = [*POSITIVE, "cosine_reweighting", "dpfp", "relu", "squared_relu"]
EVERY_MAP = pytest.mark.parametrize("name", sorted({**MAPS, **OTHERS}))


def map_named(name):
    return {**MAPS, **OTHERS}[name]


def of_library(lib, name):
    """Return a map whose learned matrix, if any, is an array of the library."""
    feature_map = map_named(name)
    if name == "hedgehog, projected":
        matrix = lib.array(feature_map.keywords["projection"])
        return partial(hedgehog, projection=matrix)
    return feature_map


def vectors(seed, *shape, spread=1.0):
    return np.random.default_rng(seed).normal(size=shape) * spread


def test_every_public_name_is_tested_here():
    made = {"PositiveRandomFeatures", "RandomFourierFeatures"}
    assert {*POINTWISE, *MADE, *made} == set(feature_maps.__all__)
    assert isinstance(MADE["positive_random"], feature_maps.PositiveRandomFeatures)
    assert isinstance(MADE["random_fourier"], feature_maps.RandomFourierFeatures)


# Values of elementwise maps.


@pytest.mark.parametrize("name", POINTWISE)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_maps_agree_with_the_oracle_within_its_error_model(lib, name, dtype):
    x = np.concatenate([np.linspace(-80, 60, 1001), [0.0, -0.0, 1e-30]]).astype(dtype)
    got = lib.numpy(getattr(feature_maps, name)(lib.array(x))).astype(np.float64)
    known = oracle.FEATURE_MAPS[name]
    error = known.error(x.astype(np.float64), oracle.unit_roundoff(dtype))
    assert (abs(got - known.value(x.astype(np.float64))) <= error).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_squared_relu_is_one_rounding_from_the_square(eager_lib, dtype):
    x = np.concatenate([np.linspace(-80, 60, 1001), [0.0, -0.0, 1e-15]]).astype(dtype)
    got = eager_lib.numpy(squared_relu(eager_lib.array(x)))
    exact = np.maximum(x.astype(np.longdouble), 0) ** 2
    assert got.dtype == x.dtype
    assert (abs(got - exact) <= oracle.unit_roundoff(dtype) * exact).all()


def test_elu_plus_one_keeps_relative_accuracy_where_the_textbook_has_none():
    x = np.linspace(-80, -10, 500, dtype=np.float32)
    exact = np.exp(x.astype(np.float64))
    assert (abs(linkern.elu_plus_one(x) - exact) <= 8 * 2.0**-24 * exact).all()
    assert ((np.expm1(x) + 1)[x < -18] == 0).all()


@pytest.mark.parametrize("name", [*POINTWISE, "squared_relu"])
def test_nan_propagates(lib, name):
    x = lib.array(np.asarray([np.nan, 1.0]))
    assert np.isnan(lib.numpy(getattr(feature_maps, name)(x))).tolist() == [True, False]


def test_large_inputs_do_not_overflow_on_the_unused_branch():
    with np.errstate(all="raise"):
        assert linkern.elu_plus_one(np.float32([1e30])) == np.float32(1e30)


# Properties of all maps.


def law_rows_are_independent(feature_map, x):
    """Each row of features depends on its own row of inputs alone."""
    whole, other = feature_map(x), x.copy()
    other[..., -1, :] *= 3
    # Matrix products of another shape may sum in another order.
    assert np.allclose(feature_map(other)[..., :-1, :], whole[..., :-1, :], rtol=1e-13)
    other[..., -1, :] = np.nan
    changed = feature_map(other)
    assert np.isnan(changed[..., -1, :]).any(axis=-1).all()
    assert np.allclose(changed[..., :-1, :], whole[..., :-1, :], rtol=1e-13)


def stabilised(x):
    """A wrong map: subtracts the largest exponent over all keys, as Performers do."""
    map_ = MADE["positive_random"]
    along = x @ map_.projection.T
    return np.exp(along - (x * x).sum(-1, keepdims=True) / 2 - along.max())


@EVERY_MAP
@settings(max_examples=15)
@given(seed=SEEDS)
def test_rows_are_independent(name, seed):
    law_rows_are_independent(map_named(name), vectors(seed, 2, 5, KEY_DIM))


@pytest.mark.parametrize(
    "mutant",
    [
        stabilised,
        lambda x: hedgehog(x - x.mean(axis=-2, keepdims=True)),
        lambda x: np.nan_to_num(linkern.elu_plus_one(x)),
    ],
)
def test_dependent_rows_are_seen(mutant):
    with pytest.raises(AssertionError):
        law_rows_are_independent(mutant, vectors(0, 2, 5, KEY_DIM))


def law_positive(feature_map, x):
    assert (feature_map(x) > 0).all()


def law_not_negative(feature_map, x):
    assert (feature_map(x) >= 0).all()


@EVERY_MAP
@settings(max_examples=15)
@given(seed=SEEDS)
def test_maps_are_positive_if_the_page_says_so(name, seed):
    x = vectors(seed, 20, KEY_DIM, spread=2.0)
    if name in POSITIVE:
        law_positive(map_named(name), x)
    if name in NOT_NEGATIVE:
        law_not_negative(map_named(name), x)
    else:
        with pytest.raises(AssertionError):
            law_not_negative(map_named(name), x)


@EVERY_MAP
def test_libraries_agree(eager_lib, name):
    x = vectors(7, 2, 5, KEY_DIM)
    feature_map = of_library(eager_lib, name)
    got = feature_map(eager_lib.array(x))
    assert isinstance(got, type(eager_lib.array(x)))
    # Other libraries have other exponentials, and other orders of summation.
    assert np.allclose(eager_lib.numpy(got), map_named(name)(x), rtol=1e-13, atol=1e-15)


@EVERY_MAP
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_features_have_the_dtype_of_the_input(name, dtype):
    x = vectors(8, 2, 5, KEY_DIM).astype(dtype)
    feature_map = map_named(name)
    if name == "hedgehog, projected":
        matrix = feature_map.keywords["projection"].astype(np.float32)
        feature_map = partial(hedgehog, projection=matrix)
    got, exact = feature_map(x), map_named(name)(x.astype(np.float64))
    assert got.dtype == x.dtype
    # Arithmetic in float32 or wider, then one rounding; a pointwise map rounds twice.
    u = oracle.unit_roundoff(dtype)
    assert np.allclose(got, exact, rtol=4 * u + 2.0**-18, atol=2.0**-20)


# Use in linear attention.


def attention(feature_map, query, key, value, *, causal, normalize):
    """Return the quadratic form, and a bound on its rounding errors."""
    phi_q, phi_k = feature_map(query), feature_map(key)
    weights = phi_q @ np.swapaxes(phi_k, -1, -2)
    gauge = abs(phi_q) @ np.swapaxes(abs(phi_k), -1, -2)
    if causal:
        weights, gauge = np.tril(weights), np.tril(gauge)
    output, size = weights @ value, gauge @ abs(value)
    if normalize:
        total = weights.sum(-1, keepdims=True)
        output, size = output / total, 2 * size / total
    return output, (phi_q.shape[-1] + key.shape[-2] + 64) * U * size


@EVERY_MAP
def test_linear_attention_takes_every_map_in_every_form(eager_lib, name):
    rng = np.random.default_rng(11)
    q, k, v = (rng.normal(size=(2, 7, n)) for n in (KEY_DIM, KEY_DIM, 3))
    arrays = [eager_lib.array(x) for x in (q, k, v)]
    feature_map = of_library(eager_lib, name)
    for form in ("recurrent", "chunkwise", "parallel"):
        for causal in (True, False):
            for normalize in (True, False) if name in POSITIVE else (False,):
                options = {"causal": causal, "normalize": normalize}
                got = linkern.linear_attention(
                    *arrays,
                    feature_map=feature_map,
                    form=form,
                    chunk_size=3 if form == "chunkwise" else None,
                    **options,
                )
                exact, bound = attention(map_named(name), q, k, v, **options)
                assert (abs(eager_lib.numpy(got.output) - exact) <= bound).all()


@EVERY_MAP
def test_one_token_at_a_time(name):
    rng = np.random.default_rng(12)
    q, k, v = (rng.normal(size=(2, 7, n)) for n in (KEY_DIM, KEY_DIM, 3))
    feature_map, state = map_named(name), None
    exact, bound = attention(feature_map, q, k, v, causal=True, normalize=False)
    for t in range(q.shape[-2]):
        if name == "cosine_reweighting":
            now = [x[..., t : t + 1, :] for x in (q, k, v)]
            result = linkern.linear_attention(
                *now,
                feature_map=cosine_reweighting(64, start=3 + t),
                normalize=False,
                initial_state=state,
            )
            output = result.output[..., 0, :]
        else:
            result = linkern.linear_attention_step(
                state,
                *(x[..., t, :] for x in (q, k, v)),
                feature_map=feature_map,
                normalize=False,
            )
            output = result.output
        state = result.state
        assert (abs(output - exact[..., t, :]) <= bound[..., t, :]).all()


def test_positions_run_on_in_packed_sequences():
    q, k, v = (vectors(seed, 6, 2) for seed in range(3))
    phi = cosine_reweighting(6)
    packed = linkern.linear_attention(
        q, k, v, feature_map=phi, normalize=False, cu_seqlens=[0, 2, 6]
    ).output
    alone = linkern.linear_attention(
        q[2:], k[2:], v[2:], feature_map=phi, normalize=False
    ).output
    assert np.allclose(packed[2:], alone, rtol=1e-12, atol=1e-14)


@EVERY_MAP
def test_pytorch_differentiates_every_map(torch, name):
    x = torch.asarray(vectors(13, 2, KEY_DIM)).requires_grad_()
    feature_map = map_named(name)
    if name == "hedgehog, projected":
        matrix = torch.asarray(feature_map.keywords["projection"]).requires_grad_()
        assert torch.autograd.gradcheck(
            lambda x, matrix: hedgehog(x, projection=matrix), (x, matrix)
        )
        return
    assert torch.autograd.gradcheck(feature_map, (x,))


@EVERY_MAP
def test_the_two_differentiations_agree(torch, name):
    rng = np.random.default_rng(14)
    inputs = {key: rng.normal(size=(5, KEY_DIM)) for key in ("query", "key", "value")}
    c = rng.normal(size=(5, KEY_DIM))
    leaves = {key: torch.asarray(x).requires_grad_() for key, x in inputs.items()}
    if name == "hedgehog, projected":
        matrix = map_named(name).keywords["projection"]
        theirs = partial(hedgehog, projection=torch.asarray(matrix))
    else:
        theirs = map_named(name)
    options = {"normalize": name in POSITIVE}
    output = linkern.linear_attention(**leaves, feature_map=theirs, **options).output
    gradients = torch.autograd.grad(output, list(leaves.values()), torch.asarray(c))
    _, pullback = linkern.vjp(
        linkern.linear_attention, **inputs, feature_map=map_named(name), **options
    )
    ours = pullback(c)
    for key, gradient in zip(leaves, gradients, strict=True):
        assert np.allclose(ours[key], gradient.numpy(), rtol=1e-10, atol=1e-11)
