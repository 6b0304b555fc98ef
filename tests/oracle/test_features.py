"""Feature maps as the judge knows them: values, slopes, and the errors it admits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkern.oracle import FEATURE_MAPS, unit_roundoff

MAPS = sorted(FEATURE_MAPS.values(), key=lambda m: m.name)
EVERY_MAP = pytest.mark.parametrize("known", MAPS, ids=lambda m: m.name)
NARROW, WIDE = unit_roundoff("float32"), unit_roundoff("float64")


def inputs(seed, spread=4.0):
    """Inputs in float32, some of them far below zero, none of them at a kink."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(4, 5)) * spread
    x[0, 0] = -35
    return (x + np.sign(x) * 2.0**-6).astype(np.float32)


@EVERY_MAP
def test_preimages_have_the_features_they_were_made_for(known):
    features = np.exp2(np.linspace(-12, 6, 50)).reshape(10, 5)
    if known.name == "softmax":
        features /= features.sum(-1, keepdims=True)
    assert np.allclose(known.value(known.preimage(features)), features, rtol=1e-12)


@EVERY_MAP
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_integers_are_reached_exactly(known, dtype):
    if known.from_integers is None:
        assert known.largest_integer == 0
        return
    features = np.arange(min(known.largest_integer, 500) + 1)
    inputs = known.from_integers(features).astype(dtype)
    assert np.array_equal(known.value(inputs), features)


@EVERY_MAP
def test_homogeneous_maps_commute_with_powers_of_two(known):
    x = np.random.default_rng(0).normal(size=(4, 3))
    commutes = np.array_equal(known.value(4 * x), 4 * known.value(x))
    assert commutes == known.homogeneous


@EVERY_MAP
@given(seed=st.integers(0, 2**16))
def test_features_are_signed_only_if_the_map_says_so(known, seed):
    assert known.signed or (known.value(inputs(seed).astype(np.float64)) >= 0).all()


@EVERY_MAP
@given(seed=st.integers(0, 2**16))
def test_pullbacks_are_slopes(known, seed):
    x = inputs(seed).astype(np.float64)
    rng = np.random.default_rng(seed)
    direction, c = rng.choice([-1.0, 1.0], x.shape), rng.normal(size=x.shape)
    found = (known.pullback(x, c) * direction).sum()

    def difference(h):
        up, down = (known.value(x + sign * h * direction) for sign in (1, -1))
        return (c * (up - down)).sum() / (2 * h)

    # The error of the coarser quotient is four times that of the finer one.
    h = 2.0**-13
    coarse, fine = difference(2 * h), difference(h)
    noise = abs(c) * (known.error(x, WIDE) + WIDE * abs(known.value(x)))
    assert abs(found - fine) <= abs(coarse - fine) + 2 * noise.sum() / h


@EVERY_MAP
@given(seed=st.integers(0, 2**16))
def test_gauges_of_pullbacks_are_as_large_as_they_can_get(known, seed):
    x, rng = inputs(seed).astype(np.float64), np.random.default_rng(seed)
    c = rng.normal(size=x.shape)
    gauge = known.pullback_gauge(x, abs(c))
    assert (abs(known.pullback(x, c)) <= gauge * (1 + 8 * WIDE)).all()
    assert (gauge <= known.pullback_gauge(x, abs(c) + 1)).all()


@EVERY_MAP
@given(seed=st.integers(0, 2**16))
def test_along_the_tangent_features_grow_in_proportion_to_themselves(known, seed):
    if known.tangent is None:
        assert known.name == "softmax"  # its features sum to one: none can
        return
    x = inputs(seed).astype(np.float64)
    assert np.array_equal(known.pullback(x, known.tangent(x)), known.value(x))


def elu(x):
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def softmax(x):
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


# As they stand in most code: the value, and the gradient from input and features.
TEXTBOOK = {
    "elu_plus_one": (
        lambda x: elu(x) + np.float32(1),
        lambda x, y, c: np.where(x > 0, c, c * (elu(x) + np.float32(1))),
    ),
    "exp": (np.exp, lambda x, y, c: y * c),
    "identity": (lambda x: x, lambda x, y, c: c),
    "relu": (lambda x: np.maximum(x, 0), lambda x, y, c: c * (x > 0)),
    "softmax": (softmax, lambda x, y, c: y * (c - (y * c).sum(-1, keepdims=True))),
}
OTHERWISE = {
    "elu_plus_one": (
        lambda x: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))),
        lambda x, y, c: c * np.where(x > 0, np.float32(1), np.exp(np.minimum(x, 0))),
    ),
    "softmax": (softmax, lambda x, y, c: y * c - y * (y * c).sum(-1, keepdims=True)),
}


def require_admitted(known, x, c, value, gradient):
    """Require a float32 evaluation to be as good as the map says a correct one is."""
    assert value.dtype == gradient.dtype == np.float32
    exact = x.astype(np.float64)
    admitted = known.error(exact, NARROW)
    assert (abs(value - known.value(exact)) <= admitted).all()
    # Two roundings besides the derivative: a product, and the result.
    relative = known.pullback_error(exact, NARROW) + 2 * NARROW
    allowed = relative * known.pullback_gauge(exact, abs(c.astype(np.float64)))
    error = abs(gradient - known.pullback(exact, c.astype(np.float64)))
    assert (error <= allowed).all()


@EVERY_MAP
@given(seed=st.integers(0, 2**16))
def test_textbook_evaluations_are_admitted(known, seed):
    x, rng = inputs(seed), np.random.default_rng(seed)
    c = rng.normal(size=x.shape).astype(np.float32)
    for forms in (TEXTBOOK, OTHERWISE):
        value, gradient = forms.get(known.name, TEXTBOOK[known.name])
        y = value(x)
        require_admitted(known, x, c, y, gradient(x, y, c))


@pytest.mark.parametrize("name", ["elu_plus_one", "exp", "relu", "softmax"])
@given(seed=st.integers(0, 2**16))
def test_those_of_pytorch_are_too(torch, name, seed):
    forms = {
        "elu_plus_one": lambda x: torch.nn.functional.elu(x) + 1,
        "exp": torch.exp,
        "relu": torch.relu,
        "softmax": lambda x: torch.softmax(x, -1),
    }
    x, rng = inputs(seed), np.random.default_rng(seed)
    c = rng.normal(size=x.shape).astype(np.float32)
    leaf = torch.asarray(x).requires_grad_()
    value = forms[name](leaf)
    (gradient,) = torch.autograd.grad(value, leaf, torch.asarray(c))
    require_admitted(FEATURE_MAPS[name], x, c, value.detach().numpy(), gradient.numpy())


def test_the_textbook_sum_needs_its_absolute_error():
    known, x = FEATURE_MAPS["elu_plus_one"], np.linspace(-30, -1, 500)
    x = x.astype(np.float32).astype(np.float64)
    value = TEXTBOOK["elu_plus_one"][0](x.astype(np.float32))
    error = abs(value - known.value(x))
    assert (error > 4 * NARROW * known.value(x)).any()
    assert (error <= known.error(x, NARROW)).all()


def test_at_zero_relu_has_no_slope_that_is_right():
    known = FEATURE_MAPS["relu"]
    x = np.asarray([[-1.0, -0.0, 0.0, 2.0**-149, 1.0]])
    unknown = np.isinf(known.pullback_error(x, NARROW))
    assert unknown.tolist() == [[False, True, True, False, False]]
