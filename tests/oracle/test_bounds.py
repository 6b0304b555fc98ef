"""The bounds hold for correct arithmetic, and are close enough to be broken by bad."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkern import oracle
from linkern.oracle.bounds import SIGNIFICAND_BITS
from tests.oracle.feature_sums import evaluate_integers

SIZES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
FLOAT32 = oracle.Precisions("float32")


def sequential(query, key, value, dtype, order):
    """Linear attention with every operation rounded to `dtype`, keys in any order."""
    numerator = np.zeros(value.shape[-1], dtype)
    denominator = dtype(0)
    for j in order:
        weight = dtype(0)
        for a, b in zip(query, key[j], strict=True):
            weight = dtype(weight + dtype(a * b))
        numerator = (numerator + (weight * value[j]).astype(dtype)).astype(dtype)
        denominator = dtype(denominator + weight)
    return (numerator / denominator).astype(dtype)


def problem(rng, dtype, length=30, key_dim=3):
    query, key = (rng.uniform(0.1, 1, (n, key_dim)).astype(dtype) for n in (1, length))
    return query, key, rng.normal(size=(length, 4)).astype(dtype)


def expected(query, key, value, dtype, **options):
    wide = (x.astype(np.float64) for x in (query, key, value))
    exact = oracle.evaluate(*wide, causal=False)
    precisions = oracle.Precisions(dtype)
    return oracle.bounded_output(exact, oracle.Quotient(), precisions, **options)


@pytest.mark.parametrize("name", sorted(SIZES))
@given(seed=st.integers(0, 2**16))
def test_any_order_of_keys_stays_within_the_bound(name, seed):
    rng = np.random.default_rng(seed)
    query, key, value = problem(rng, SIZES[name])
    judged = expected(query, key, value, name)
    got = sequential(query[0], key, value, SIZES[name], rng.permutation(30))
    assert (abs(got.astype(np.float64) - judged.output[0]) <= judged.bound[0]).all()


def test_stagnation_attains_a_good_part_of_the_bound():
    # Ties to even: 1 + u rounds to 1, time after time, so that nothing is ever added.
    key = np.full((1001, 1), 2.0**-24, np.float32)
    key[0] = 1
    query, value = np.ones((1, 1), np.float32), np.ones((1001, 1), np.float32)
    value[1:] = -1
    judged = expected(query, key, value, "float32")
    got = sequential(query[0], key, value, np.float32, range(1001))
    ratio = abs(got[0] - judged.output[0, 0]) / judged.bound[0, 0]
    assert 0.2 < ratio <= 1


def test_what_cannot_be_proved_is_infinite():
    rng = np.random.default_rng(0)
    query, key, value = problem(rng, ml_dtypes.bfloat16, length=200)
    assert np.isinf(expected(query, key, value, "bfloat16").bound).all()
    assert np.isinf(oracle.gamma(np.asarray([200.0]), 2.0**-8)).all()


@given(
    h=st.integers(0, 2**20),
    bits=st.sampled_from(sorted(SIGNIFICAND_BITS.values())),
    confidence=st.floats(0, 100),
)
def test_the_probabilistic_growth_is_the_formula_and_never_above_the_proved_one(
    h, bits, confidence
):
    u = 2.0**-bits
    found, proved = oracle.probable(h, u, confidence), oracle.gamma(h, u)
    assert found <= proved
    if found < proved:
        grown = confidence * math.sqrt(h) * u + h * u**2 / (1 - u)
        assert math.log1p(found) == pytest.approx(grown, rel=2.0**-40)


@given(seed=st.integers(0, 2**16), length=st.integers(1, 400))
def test_independent_draws_stay_within_the_probabilistic_bound(seed, length):
    rng = np.random.default_rng(seed)
    query, key, value = problem(rng, np.float32, length)
    proved = expected(query, key, value, "float32").bound
    judged = expected(query, key, value, "float32", confidence=3.0)
    got = sequential(query[0], key, value, np.float32, range(length))
    allowed = judged.once_stored("float32")[0]
    assert (judged.bound <= proved).all()
    assert (abs(got - judged.output[0]) <= allowed).all()


def test_a_declared_chunk_size_gives_a_sharper_bound():
    rng = np.random.default_rng(0)
    query, key, value = problem(rng, np.float32, length=2000)
    loose = expected(query, key, value, "float32").bound
    sharp = expected(query, key, value, "float32", chunk_size=64).bound
    assert (sharp * 10 < loose).all()


@pytest.mark.parametrize(
    "stage", ["feature", "operand", "score", "state", "normalizer"]
)
def test_every_declared_stage_widens_the_bound(stage):
    rng = np.random.default_rng(0)
    wide = (x.astype(np.float64) for x in problem(rng, np.float32))
    exact = oracle.evaluate(*wide, causal=False)
    plain = oracle.bounded_output(exact, oracle.Quotient(), FLOAT32)
    declared = oracle.Precisions("float32", **{stage: "bfloat16"})
    relaxed = oracle.bounded_output(exact, oracle.Quotient(), declared)
    u = oracle.unit_roundoff("bfloat16")
    assert (relaxed.bound > plain.bound + 0.5 * u * abs(relaxed.output)).all()


@pytest.mark.parametrize(
    ("mode", "divisor"),
    [("denominator", 6 + 2), ("normalizer", 6 + 2 * 3), ("clamp", 7)],
)
def test_declared_epsilons_enter_where_they_say(mode, divisor):
    query, key = np.full((1, 1), 3.0), np.full((1, 1), 2.0)
    exact = oracle.evaluate(query, key, np.ones((1, 1)), causal=True)
    eps = 7.0 if mode == "clamp" else 2.0
    quotient = oracle.Quotient(eps=eps, eps_mode=mode)
    found = oracle.bounded_output(exact, quotient, FLOAT32)
    assert found.output[0, 0] == 6 / divisor


def test_an_epsilon_of_the_normalizer_is_weighed_by_signed_queries():
    query, key = np.asarray([[1.0, -2.0]]), np.asarray([[3.0, 1.0]])
    exact = oracle.evaluate(query, key, np.ones((1, 1)), causal=True)
    quotient = oracle.Quotient(eps=0.5, eps_mode="normalizer")
    found = oracle.bounded_output(exact, quotient, FLOAT32)
    assert found.output[0, 0] == (3 - 2) / (1 * (3 + 0.5) - 2 * (1 + 0.5))
    assert found.bound[0, 0] > 0


@pytest.mark.parametrize(
    ("eps", "mode"),
    [(0.0, "denominator"), (0.1, "denominator"), (0.1, "normalizer"), (9.0, "clamp")],
)
@given(seed=st.integers(0, 2**16), normalize=st.booleans())
def test_admitted_errors_of_features_stay_within_the_bound(eps, mode, seed, normalize):
    rng = np.random.default_rng(seed)
    sizes = [rng.uniform(0.1, 1, (n, 3)) for n in rng.integers(1, 9, 2)]
    query, key = (x * rng.choice([-1, 1], (1, 3)) for x in sizes)
    value = rng.normal(size=(len(key), 2))
    errors = [0.01 * abs(x) for x in (query, key)]
    admitted = dict(zip(("query_error", "key_error"), errors, strict=True))
    moved = [
        x + rng.choice([-1, 1], x.shape) * error
        for x, error in zip((query, key), errors, strict=True)
    ]
    quotient = oracle.Quotient(normalize, -0.5 if eps == 0 else 1.0, eps, mode)
    wide = oracle.Precisions("float64")
    due, other = (
        oracle.bounded_output(
            oracle.evaluate(*features, value, causal=False, **allowed), quotient, wide
        )
        for features, allowed in (((query, key), admitted), (moved, {}))
    )
    assert (abs(other.output - due.output) <= due.bound + other.bound).all()


def test_scale_stays_inside_the_quotient_only_if_there_is_an_epsilon():
    exact = oracle.evaluate(
        np.ones((1, 1)), np.ones((1, 1)), np.ones((1, 1)), causal=True
    )
    for quotient, output in (
        (oracle.Quotient(scale=0.5), 1.0),
        (oracle.Quotient(scale=0.5, eps=0.5), 0.5),
        (oracle.Quotient(scale=0.5, normalize=False), 0.5),
    ):
        found = oracle.bounded_output(exact, quotient, FLOAT32)
        assert found.output[0, 0] == output


def integers(denominator, key_dim=1):
    query = np.zeros((1, key_dim), int)
    query[0, 0] = denominator
    key = np.ones((1, key_dim), int)
    return evaluate_integers(query, key, np.full((1, 1), 3), causal=True)


def test_integers_leave_no_room_where_the_divisor_is_a_power_of_two():
    u = oracle.unit_roundoff("float32")
    for denominator, key_dim, sharp in ((4, 1, True), (4, 3, False), (5, 1, False)):
        found = oracle.exact_output(
            integers(denominator, key_dim), oracle.Quotient(), FLOAT32
        )
        assert found.output[0, 0] == 3
        assert (found.sharp[0, 0] <= 3.1 * u * 3) == sharp
        assert found.bound[0, 0] >= found.sharp[0, 0]


@given(seed=st.integers(0, 2**16), denominators=st.integers(1, 60))
def test_no_other_integers_are_within_the_bound_of_small_problems(seed, denominators):
    rng = np.random.default_rng(seed)
    ones = np.ones((denominators, 1), int)
    value = rng.integers(-9, 10, (denominators, 1))
    exact = evaluate_integers(ones, ones, value, causal=True)
    found = oracle.exact_output(exact, oracle.Quotient(), FLOAT32)
    n, d = exact.sums.numerator, exact.sums.denominator
    for other_n, other_d in ((n + 1, d), (n - 1, d), (n, d + 1), (n + 1, d + 1)):
        other = other_n / other_d
        moved = other != found.output
        assert (abs(other - found.output) > found.bound)[moved].all()


def test_an_unnormalised_sum_of_integers_may_not_round_at_all():
    quotient = oracle.Quotient(normalize=False)
    found = oracle.exact_output(integers(5), quotient, FLOAT32)
    assert found.sharp[0, 0] <= 2.0**-53 * found.output[0, 0]


def test_rows_and_channels_of_a_bound_are_those_of_its_output():
    rng = np.random.default_rng(0)
    output = rng.normal(size=(2, 5, 4))
    found = oracle.Bounded(output, np.arange(5.0)[:, None] * np.ones((2, 5, 4)))
    assert np.array_equal(found.rows(1, 3).output, output[:, 1:3])
    assert np.array_equal(found.rows(1, 3).bound, found.bound[:, 1:3])
    chosen = found.channels(np.asarray([3, 0]))
    assert np.array_equal(chosen.output, output[..., [3, 0]])
    assert chosen.bound.shape == chosen.output.shape
    of_rows = oracle.Bounded(output, np.ones((2, 5, 1))).channels(np.asarray([2]))
    assert of_rows.bound.shape == (2, 5, 1)


@pytest.mark.parametrize("name", sorted(SIZES))
@given(exact=st.floats(-1e3, 1e3), error=st.floats(0, 10), part=st.floats(-1, 1))
def test_storing_a_result_adds_its_rounding_and_no_more(name, exact, error, part):
    found = oracle.Bounded(np.asarray(exact), np.asarray(error))
    held = exact + part * error
    stored = np.float64(np.asarray(held).astype(SIZES[name]))
    assert abs(stored - exact) <= found.once_stored(name) + 2.0**-52 * abs(exact)


def test_a_small_result_is_stored_as_a_subnormal_number():
    held = np.asarray([1.3e-7, -2.5e-8, 0.0])
    result = oracle.Bounded(held, np.zeros(3))
    error = abs(held.astype(np.float16).astype(np.float64) - held)
    assert (error > 2.0**-11 * abs(held))[:2].all()
    assert (error <= result.once_stored("float16")).all()
    assert (result.once_stored("float16") == 2.0**-25).all()


@pytest.mark.parametrize("name", [*SIZES, "float64"])
def test_the_smallest_error_is_half_the_smallest_subnormal(name):
    dtype = SIZES.get(name, np.float64)
    subnormal = np.float64(ml_dtypes.finfo(dtype).smallest_subnormal)
    # Half of the smallest float64 is none; a bound of zero would allow no underflow.
    assert oracle.bounds.smallest(name) == max(subnormal / 2, 2.0**-1074)
    assert oracle.bounds.smallest(name) > 0
    assert oracle.unit_roundoff(name) == np.float64(ml_dtypes.finfo(dtype).eps) / 2


def test_tfloat32_has_the_exponents_of_float32_and_the_significand_of_float16():
    assert oracle.unit_roundoff("tfloat32") == oracle.unit_roundoff("float16")
    bits = SIGNIFICAND_BITS["float32"] - SIGNIFICAND_BITS["tfloat32"]
    tiny = oracle.bounds.smallest("float32")
    assert oracle.bounds.smallest("tfloat32") == 2.0**bits * tiny
    assert oracle.unit_roundoff(None) == 0
