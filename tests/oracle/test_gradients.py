"""The judge's gradients, against arithmetic that knows no closed form for them."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkern import oracle
from linkern.oracle import functions
from linkern.oracle.balls import Ball
from linkern.oracle.tape import Tape
from tests.oracle.feature_sums import Differentiand, bounded_gradients

EXACT = oracle.Precisions("float64")
NAMES = ("query", "key", "value")


@dataclass(frozen=True)
class Dual:
    """A fraction and its slope: what a derivative is, before there are rules for it."""

    at: Fraction
    slope: Fraction = Fraction(0)

    def __add__(self, other):
        return Dual(self.at + other.at, self.slope + other.slope)

    def __mul__(self, other):
        slope = self.at * other.slope + self.slope * other.at
        return Dual(self.at * other.at, slope)

    def __truediv__(self, other):
        quotient = self.at / other.at
        return Dual(quotient, (self.slope - quotient * other.slope) / other.at)


def total(duals):
    return sum(duals, start=Dual(Fraction(0)))


def fixed(x):
    return Dual(Fraction(float(x)))


def divided(query, weights, keys, quotient):
    """What the weighted sum of values of one row is divided by."""
    if not quotient.normalize:
        return fixed(1)
    scale, eps = fixed(quotient.scale), fixed(quotient.eps)
    d = scale * total(weights)
    if quotient.eps_mode == "normalizer":
        shifted = [total(column) + eps for column in zip(*keys, strict=True)]
        products = (a * z for a, z in zip(query, shifted, strict=True))
        return scale * total(products)
    if quotient.eps_mode == "clamp":
        return d if d.at > eps.at else eps
    return d + eps


def loss(query, key, value, cotangent, causal, quotient):
    """``sum_i g_i.o_i`` from the definition, over numbers of any kind."""
    rows = []
    for i, a in enumerate(query):
        seen = slice(0, i + 1) if causal else slice(None)
        weights = [total(x * y for x, y in zip(a, b, strict=True)) for b in key[seen]]
        divisor = divided(a, weights, key[seen], quotient)
        for c, g in enumerate(cotangent[i]):
            terms = (w * v[c] for w, v in zip(weights, value[seen], strict=True))
            rows.append(fixed(g) * fixed(quotient.scale) * total(terms) / divisor)
    return total(rows)


def by_duals(of, quotient):
    """Every partial derivative of the loss, one evaluation for each."""
    inputs = [of.query, of.key, of.value]
    for which, x in enumerate(inputs):
        found = np.empty(x.shape, dtype=object)
        for index in np.ndindex(x.shape):
            duals = [[[fixed(n) for n in row] for row in given] for given in inputs]
            duals[which][index[0]][index[1]] = Dual(Fraction(x[index]), Fraction(1))
            found[index] = loss(*duals, of.cotangent, of.causal, quotient).slope
        yield found


def differentiand(query, key, value, cotangent, *, causal):
    zeros = np.zeros_like(query), np.zeros_like(key)
    return Differentiand(query, key, value, cotangent, *zeros, causal)


def gradients(of, quotient):
    return bounded_gradients(of, quotient, EXACT, output_dtype="float64")


QUOTIENTS = [
    oracle.Quotient(normalize, scale, eps, mode)
    for scale in (1.0, 0.5, -2.0)
    for normalize, eps, mode in (
        (False, 0.0, "denominator"),
        (True, 0.0, "denominator"),
        (True, 0.3, "denominator"),
        (True, 0.3, "normalizer"),
        (True, 70.3, "clamp"),  # some rows are above, others below
    )
]


@st.composite
def signed(draw, causal):
    """Features of both signs, with denominators that are far from zero."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    length = draw(st.integers(1, 4))
    keys = length if causal else draw(st.integers(1, 4))
    key_dim, value_dim = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    shapes = [(length, key_dim), (keys, key_dim), (keys, value_dim)]
    shapes.append((length, value_dim))
    arrays = [rng.integers(-12, 13, shape) / 4 for shape in shapes]
    arrays[0][:, 0] = arrays[1][:, 0] = 6
    return differentiand(*arrays, causal=causal)


@pytest.mark.parametrize("causal", [True, False])
@given(quotient=st.sampled_from(QUOTIENTS), data=st.data())
def test_gradients_are_those_of_the_definition(causal, quotient, data):
    of = data.draw(signed(causal))
    for exact, found in zip(
        by_duals(of, quotient), gradients(of, quotient), strict=True
    ):
        assert np.isfinite(found.bound).all()
        for index, due in np.ndenumerate(exact):
            error = abs(Fraction(found.output[index]) - due)
            assert error <= Fraction(found.bound[index])


@given(seed=st.integers(0, 2**16), length=st.integers(1, 6))
def test_dyadic_problems_have_exactly_dyadic_gradients(seed, length):
    rng = np.random.default_rng(seed)
    # The last feature of a query fills its denominator up to a power of two.
    query, key = np.ones((length, 2)), np.zeros((length, 2))
    key[:, 0] = key[0, 1] = 1
    seen = np.arange(1, length + 1)
    query[:, 1] = 2 ** np.ceil(np.log2(seen)) - seen
    value, cotangent = (rng.integers(-9, 10, (length, 3)) * 1.0 for _ in range(2))
    of = differentiand(query, key, value, cotangent, causal=True)
    for exact, found in zip(
        by_duals(of, oracle.Quotient()),
        gradients(of, oracle.Quotient()),
        strict=True,
    ):
        assert np.array_equal(found.output, exact.astype(np.float64))


def slope(of, name, direction, quotient, step):
    """Central difference of the loss of the oracle's own outputs."""
    ends = []
    for sign in (1, -1):
        inputs = {n: getattr(of, n) for n in NAMES}
        inputs[name] = inputs[name] + sign * step * direction
        exact = oracle.evaluate(*inputs.values(), causal=of.causal)
        found = oracle.bounded_output(exact, quotient, EXACT)
        noise = (abs(of.cotangent) * found.bound).sum()
        ends.append(((of.cotangent * found.output).sum(), noise))
    (up, above), (down, below) = ends
    return (up - down) / (2 * step), (above + below) / (2 * step)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("causal", [True, False])
@given(quotient=st.sampled_from(QUOTIENTS), seed=st.integers(0, 2**16))
def test_gradients_say_how_the_output_changes(name, causal, quotient, seed):
    rng = np.random.default_rng(seed)
    length, keys = (9, 9) if causal else (9, 5)
    query, key = (rng.uniform(1, 2, (n, 3)) for n in (length, keys))
    value, cotangent = (rng.normal(size=(n, 4)) for n in (keys, length))
    of = differentiand(query, key, value, cotangent, causal=causal)
    direction = rng.choice([-1.0, 1.0], getattr(of, name).shape)
    found = gradients(of, quotient)[NAMES.index(name)]
    # The error of the coarser difference is four times that of the finer one.
    (coarse, _), (fine, noise) = (
        slope(of, name, direction, quotient, 2.0**-n) for n in (13, 14)
    )
    allowed = abs(coarse - fine) + 2 * noise + found.bound.sum()
    assert abs((found.output * direction).sum() - fine) <= allowed


def autograd_output(xp, query, key, value, causal, quotient):
    """The quadratic form on arrays that are differentiated automatically."""
    scores = quotient.scale * query @ key.T
    scores = xp.tril(scores) if causal else scores
    if not quotient.normalize:
        return scores @ value
    d, eps = scores.sum(-1)[:, None], quotient.eps
    if quotient.eps_mode == "clamp":
        d = xp.where(d > eps, d, eps * xp.ones_like(d))
    elif quotient.eps_mode == "normalizer":
        d = d + quotient.scale * eps * query.sum(-1)[:, None]
    else:
        d = d + eps
    return scores @ value / d


@pytest.mark.parametrize("library", ["torch", "jax"])
@pytest.mark.parametrize("causal", [True, False])
def test_automatic_differentiation_is_within_the_bound(library, causal, request):
    module = request.getfixturevalue(library)
    rng = np.random.default_rng(0)
    length, keys = (33, 33) if causal else (33, 20)
    query, key = (rng.uniform(-0.2, 1, (n, 5)) for n in (length, keys))
    query[:, 0] = key[:, 0] = 2
    value, cotangent = (rng.normal(size=(n, 4)) for n in (keys, length))
    of = differentiand(query, key, value, cotangent, causal=causal)
    for quotient in QUOTIENTS:
        if library == "torch":
            leaves = [module.asarray(x).requires_grad_() for x in (query, key, value)]
            output = autograd_output(module, *leaves, causal, quotient)
            pulled = module.autograd.grad(output, leaves, module.asarray(cotangent))
        else:
            _, pullback = module.vjp(
                lambda *x, q=quotient: autograd_output(module.numpy, *x, causal, q),
                *(module.numpy.asarray(x) for x in (query, key, value)),
            )
            pulled = pullback(module.numpy.asarray(cotangent))
        for got, found in zip(pulled, gradients(of, quotient), strict=True):
            allowed = found.once_stored("float64")
            assert np.isfinite(allowed).all()
            assert (abs(np.asarray(got) - found.output) <= allowed).all()


@given(quotient=st.sampled_from(QUOTIENTS), data=st.data())
def test_a_normalised_output_ignores_the_scale_of_its_features(quotient, data):
    of = data.draw(signed(causal=True))
    if quotient.eps or not quotient.normalize:
        return
    query, key, _ = gradients(of, quotient)
    along = (of.query * query.output).sum(-1)
    assert (abs(along) <= 2 * (abs(of.query) * query.bound).sum(-1)).all()
    along = (of.key * key.output).sum()
    assert abs(along) <= 2 * (abs(of.key) * key.bound).sum()


def test_leading_axes_are_problems_of_their_own():
    rng = np.random.default_rng(3)
    arrays = [rng.uniform(size=(2, 3, 7, n)) for n in (4, 4, 5, 5)]
    whole = gradients(differentiand(*arrays, causal=True), oracle.Quotient())
    for head in np.ndindex(2, 3):
        one = differentiand(*(x[head] for x in arrays), causal=True)
        alone = gradients(one, oracle.Quotient())
        for many, single in zip(whole, alone, strict=True):
            both = many.bound[head] + single.bound
            assert (abs(many.output[head] - single.output) <= both).all()


@pytest.mark.parametrize(("dtype", "largest"), [("float32", 44.4), ("float64", 354.9)])
def test_a_divisor_whose_square_overflows_may_lose_its_gradient(dtype, largest):
    """Automatic differentiation of a quotient divides by the square."""
    one, operator = np.ones((1, 1, 1, 1)), oracle.OPERATORS["mlstm"]
    for gate, lost in ((-largest, True), (20.0 - largest, False)):
        inputs = {
            "query": one,
            "key": one,
            "value": one,
            "input_gate": np.full((1, 1, 1), gate),
            "log_decay": np.zeros((1, 1, 1)),
        }
        precisions = oracle.Precisions(dtype)
        gradients = operator.bounded_gradients(inputs, one, 1.0, precisions)
        of_gate = gradients["input_gate"]
        assert np.isclose(of_gate.output.item(), np.exp(gate), rtol=1e-9, atol=0)
        assert (of_gate.bound.item() >= of_gate.output.item()) == lost


def test_the_sum_of_a_softmax_is_a_part_of_its_gradient():
    rng = np.random.default_rng(1)
    scores, back = rng.normal(size=(2, 3, 5))
    tape = Tape()
    x = tape.constant(scores)
    shares = functions.softmax(tape, x)
    known = [(shares, Ball(back))]
    [whole] = tape.gradients(known, [x])
    [part] = tape.gradients(known, [x], without="denominator")
    p = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    mean = (p * back).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(part.value, p * back, rtol=1e-12)
    np.testing.assert_allclose(whole.value, p * (back - mean), rtol=1e-9, atol=1e-15)


def test_the_sums_of_weights_are_a_part_of_their_gradient():
    rng = np.random.default_rng(1)
    logits, back = rng.normal(size=(2, 1, 6, 3))
    tape = Tape()
    nothing, logit = tape.constant(np.zeros((1, 1))), tape.constant(logits)
    start = tape.constant(np.full((1, 3), -np.inf))
    _, share, *_ = functions.log_sums(tape, nothing, logit, start)
    known = [(share, Ball(back))]
    [whole] = tape.gradients(known, [logit])
    [part] = tape.gradients(known, [logit], without="sums")
    sums = np.cumsum(np.exp(logits), axis=-2)
    shares = np.exp(logits) / sums
    # Of the share of a token and those of later ones, whose sums it is in.
    through = np.cumsum((back * shares / sums)[:, ::-1], axis=-2)[:, ::-1]
    np.testing.assert_allclose(part.value, back * shares, rtol=1e-12)
    expected = back * shares - np.exp(logits) * through
    np.testing.assert_allclose(whole.value, expected, rtol=1e-9)
