"""Problems are what they promise: stable, exact, in range, within the contract."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import linkern
from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing import OPERATORS
from linkern.testing.kernels.assembly import Parts, stateful
from linkern.testing.problems import strategies as draws
from linkern.testing.problems.context import Scope, Shape
from linkern.testing.problems.generators import (
    extreme_problem,
    integer_problem,
    real_problem,
    with_cotangent,
)
from linkern.testing.problems.mixture import any_problem
from linkern.testing.problems.problem import Problem
from linkern.testing.runner import opening
from linkern.testing.runner.plan import Plan
from linkern.testing.spec.contract import Contract
from linkern.testing.target.frameworks import numpy_dtype
from tests.marks import every
from tests.oracle.feature_sums import evaluate_integers, largest_sum

quickly = settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
CAUSAL, NONCAUSAL = (
    OPERATORS["linear_attention"],
    OPERATORS["linear_attention_noncausal"],
)
BOTH = pytest.mark.parametrize("operator", [CAUSAL, NONCAUSAL], ids=lambda o: o.name)
DECLARED = [
    {},
    {"accumulator_dtype": "float16"},
    {"accumulator_dtype": "bfloat16"},
    {"state_dtype": "bfloat16", "normalizer_dtype": "bfloat16"},
    {"state_dtype": "float16", "normalizer_dtype": "float16"},
    {"score_dtype": "bfloat16"},
    {"score_dtype": "float16"},
    {"operand_dtype": "tfloat32"},
    {"operand_dtype": "float16"},
    {"feature_dtype": "bfloat16"},
    {"feature_map": "identity", "score_dtype": "float16"},
    {"feature_map": "identity"},
    {"feature_map": "relu", "key_feature_map": "exp"},
    {"feature_map": "elu_plus_one", "key_feature_map": "exp"},
]
EVERY_STAGE = pytest.mark.parametrize("declared", DECLARED[:9], ids=str)
SEEDS = st.integers(0, 2**16)


def scope_of(declared, operator=CAUSAL, dtype="float32"):
    return Scope(operator, Contract.from_mapping(declared), dtype)


def tokens(problem, last):
    return [getattr(problem, n)[..., :last, :] for n in ("query", "key", "value")]


@given(
    seed=SEEDS,
    length=st.integers(2, 60),
    kind=st.sampled_from(
        ("normal", "uniform", "wide", "constant", "bigfirst", "tiny", "dense", "onehot")
    ),
    values=st.sampled_from(
        ("normal", "uniform", "positive", "constant", "alternating")
    ),
)
def test_a_shorter_sequence_holds_the_first_tokens_of_a_longer_one(
    seed, length, kind, values
):
    def made(length):
        shape, rng = Shape(2, 1, length, length, 3, 2), np.random.default_rng(seed)
        if kind in ("dense", "onehot"):
            problem = integer_problem(scope_of({}), shape, kind, "dense", rng)
        else:
            problem = real_problem(scope_of({}), shape, kind, values, rng)
        return with_cotangent(problem, rng)

    whole, first = made(length), made(length // 2)
    for one, other in zip(tokens(whole, length // 2), tokens(first, None), strict=True):
        assert np.array_equal(one, other)
    assert np.array_equal(whole.cotangent[..., : length // 2, :], first.cotangent)


INTEGERS = {
    "integer_problems": draws.integer_problems,
    "gradient_problems": draws.gradient_problems,
    "tile_problems": draws.tile_problems,
    "long_problems": draws.long_problems,
}


@BOTH
@EVERY_STAGE
@pytest.mark.parametrize("strategy", INTEGERS)
def test_sums_of_integers_fit_into_the_narrowest_stage(strategy, declared, operator):
    scope = scope_of(declared, operator)

    @quickly
    @given(INTEGERS[strategy](scope))
    def examine(problem):
        if problem.integers is None:
            return
        exact = evaluate_integers(*problem.integers, causal=operator.causal)
        assert largest_sum(exact) <= 2**scope.narrowest_bits
        for x, bits in zip(problem.integers, [scope.input_bits] * 3, strict=True):
            assert abs(x).max(initial=0) <= 2**bits

    examine()


def added(x, axis, rng, dtype):
    """Sum in `dtype`, in some order."""
    order = rng.permutation(x.shape[axis])
    return np.add.accumulate(x.take(order, axis).astype(dtype), axis).take(-1, axis)


@BOTH
@pytest.mark.parametrize("declared", DECLARED[:7], ids=str)
@pytest.mark.parametrize("density", ["zeros", "sparse", "dense"])
def test_every_order_of_summation_is_exact_on_integers(density, declared, operator):
    scope = scope_of(declared, operator)
    stages = {name for name in scope.stages if name != "tfloat32"}
    dtype = numpy_dtype(min(stages, key=SIGNIFICAND_BITS.get))

    @quickly
    @given(SEEDS, st.sampled_from(draws.INTEGER_KINDS), st.integers(1, 30))
    def examine(seed, kind, length):
        rng = np.random.default_rng(seed)
        shape = Shape(1, 1, length, length, int(rng.integers(1, 6)), 2)
        problem = integer_problem(scope, shape, kind, density, rng)
        exact = evaluate_integers(*problem.integers, causal=operator.causal).sums
        a, b, v = (x[0, 0].astype(dtype) for x in problem.integers)
        seen = np.tri(length) if operator.causal else np.ones((length, length))
        seen = seen.astype(dtype)
        scores = added(a[:, None] * b, -1, rng, dtype) * seen
        by_scores = added(scores[:, :, None] * v, 1, rng, dtype)
        assert np.array_equal(by_scores, exact.numerator[0, 0].astype(dtype))
        denominator = added(scores, 1, rng, dtype)
        assert np.array_equal(denominator, exact.denominator[0, 0, :, 0])
        writes = (b[:, :, None] * v[:, None])[None] * seen[:, :, None, None]
        by_states = a[:, :, None] * added(writes, 1, rng, dtype)
        assert np.array_equal(added(by_states, 1, rng, dtype), by_scores)

    examine()


@given(seed=SEEDS, length=st.integers(1, 40), key_dim=st.integers(2, 8))
def test_denominators_of_integers_are_powers_of_two(seed, length, key_dim):
    rng = np.random.default_rng(seed)
    shape = Shape(1, 2, length, length, key_dim, 3)
    problem = integer_problem(scope_of({}), shape, "dense", "dense", rng)
    sums = evaluate_integers(*problem.integers, causal=True).sums
    assert (np.frexp(sums.denominator)[0] == 0.5).all()


@given(seed=SEEDS, length=st.integers(1, 40), key_dim=st.integers(2, 4))
def test_gradients_of_integers_are_dyadic(seed, length, key_dim):
    rng = np.random.default_rng(seed)
    shape = Shape(1, 2, length, length, key_dim, 3)
    scope = scope_of({}, dtype="float64")
    problem = integer_problem(scope, shape, "dense", "dense", rng)
    problem = with_cotangent(problem, rng)
    inputs = problem.query, problem.key, problem.value, problem.cotangent
    # Float64 holds every sum on the way: what a correct kernel returns is exact.
    found = stateful(Parts()).vjp(*inputs)
    for got, due in zip(found[:3], problem.solve_gradients().values(), strict=True):
        assert np.array_equal(got, due.output)


@given(seed=SEEDS, integers=st.booleans(), keys=st.integers(1, 9))
def test_a_cotangent_is_all_that_is_added(seed, integers, keys):
    rng, scope = np.random.default_rng(seed), scope_of({}, NONCAUSAL, "bfloat16")
    shape = Shape(2, 3, 7, keys, 4, 5)
    make = integer_problem if integers else real_problem
    kinds = ("dense", "dense") if integers else ("normal", "normal")
    plain = make(scope, shape, *kinds, rng)
    found = with_cotangent(plain, rng)
    assert found.cotangent.shape == (2, 3, 7, 5)
    assert found.cotangent.dtype == plain.query.dtype
    assert replace(found, cotangent=None).__dict__ == plain.__dict__
    if integers:
        assert np.isin(found.cotangent.astype(float), np.arange(-3, 4)).all()


def test_the_gradient_of_relu_at_zero_is_unknown_and_any_other_is_not():
    scope = scope_of({"feature_map": "relu"})
    one = np.ones((1, 1, 3, 2), np.float32)
    query = one.copy()
    query[0, 0, 1, 0] = 0
    problem = Problem(
        scope, "by hand", {"query": query, "key": one, "value": one}, cotangent=one
    )
    of_query, of_key, of_value = problem.solve_gradients().values()
    assert np.array_equal(np.isinf(of_query.bound), query == 0)
    assert np.isfinite(of_key.bound).all()
    assert np.isfinite(of_value.bound).all()


def require_held(x, dtype, *, normal=False):
    """Require numbers to be finite in a dtype; and, if asked for, not subnormal."""
    if dtype is None:
        return
    if dtype == "tfloat32":
        dtype = "float32"  # which has the same exponents
    with np.errstate(over="ignore"):
        held = abs(x.astype(numpy_dtype(dtype)).astype(np.float64))
    assert np.isfinite(held).all()
    smallest = {"float16": -14, "float64": -1022}.get(dtype, -126)
    assert not normal or (held >= 2.0**smallest).all()


@pytest.mark.parametrize("kind", ["huge", "large", "tiny"])
@pytest.mark.parametrize(
    ("dtype", "declared"),
    [
        *((dtype, of) for of in DECLARED for dtype in ("float32", "float64")),
        *((dtype, {}) for dtype in ("float16", "bfloat16")),
    ],
    ids=str,
)
def test_extreme_problems_stay_within_every_declared_stage(kind, dtype, declared):
    scope = scope_of(declared, dtype=dtype)
    stages = scope.contract.precisions(dtype)

    @quickly
    @given(SEEDS, st.integers(1, 200), st.integers(1, 40))
    def examine(seed, length, key_dim):
        shape = Shape(1, 1, length, length, key_dim, 1)
        problem = extreme_problem(scope, shape, kind, np.random.default_rng(seed))
        query, key, v = (x[0, 0].astype(np.float64) for x in tokens(problem, None))
        a, b = scope.query_map.value(query), scope.key_map.value(key)
        for x in (a, b):
            for stage in (stages.feature, stages.operand, stages.accumulator):
                require_held(x, stage, normal=True)
        require_held(v, stages.operand)
        scores = a @ b.T
        for stage in (stages.score, stages.accumulator):
            require_held(scores, stage, normal=True)
            require_held(np.cumsum(scores, -1), stages.accumulator, normal=True)
        require_held(np.cumsum(scores * v[:, 0], -1), stages.accumulator)
        require_held(np.cumsum(b * v, 0), stages.state or stages.accumulator)
        carried = stages.normalizer or stages.accumulator
        require_held(np.cumsum(b, 0), carried, normal=True)

    examine()


@st.composite
def contracts(draw):
    """Contracts that leave some shape, and say something about it."""
    step = draw(st.sampled_from((1, 1, 3, 16)))
    least = draw(st.integers(0, 40))
    most = draw(st.none() | st.integers(least + 2 * step, least + 400))
    dims = st.lists(st.integers(1, 40), max_size=3, unique=True).map(tuple)
    equal = draw(st.booleans())
    of_keys, of_values = draw(dims), draw(dims)
    if equal:
        of_values = draw(st.sampled_from(((), of_keys)))
        of_keys = draw(st.sampled_from(((), of_keys)))
    return Contract(
        min_length=least,
        max_length=most,
        length_multiple_of=step,
        key_dims=of_keys,
        value_dims=of_values,
        equal_dims=equal,
        equal_lengths=draw(st.booleans()),
        layout=draw(st.sampled_from(("bhtd", "bthd", "htd", "td"))),
    )


STRATEGIES = {
    **INTEGERS,
    "real_problems": draws.real_problems,
    "two_tokens": lambda scope: draws.with_cut(draws.real_problems(scope, least=2)),
    "random_problems": draws.random_problems,
    "busy_problems": draws.busy_problems,
    "extreme_problems": draws.extreme_problems,
}


@BOTH
@pytest.mark.parametrize("strategy", every(3, STRATEGIES))
@pytest.mark.parametrize("few_shapes", [False, True])
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(contract=contracts(), data=st.data())
def test_shapes_are_those_of_the_contract(
    strategy, few_shapes, operator, contract, data
):
    scope = Scope(operator, contract, "float32", few_shapes=few_shapes)
    shape = data.draw(STRATEGIES[strategy](scope)).shape
    most = contract.max_length or 10**9
    for length in (shape.length, shape.keys):
        assert contract.shortest <= length <= most
        assert length % contract.length_multiple_of == 0
    assert shape.length == shape.keys or not (operator.causal or contract.equal_lengths)
    assert not contract.key_dims or shape.key_dim in contract.key_dims
    assert not contract.value_dims or shape.value_dim in contract.value_dims
    assert shape.key_dim == shape.value_dim or not contract.equal_dims
    assert shape.batch == 1 or "b" in contract.layout
    assert shape.heads == 1 or "h" in contract.layout


@pytest.mark.parametrize(
    ("op", "few_shapes"), every(9, [(op, x) for x in (True, False) for op in OPERATORS])
)
def test_tiles_of_channels_are_reached_where_each_shape_is_compiled(op, few_shapes):
    scope = Scope(OPERATORS[op], Contract(), "float32", few_shapes=few_shapes)
    seen = set()

    @settings(max_examples=30)
    @given(draws.tile_problems(scope))
    def draw(problem):
        seen.add((problem.shape.key_dim, problem.shape.value_dim))

    draw()
    assert max(value_dim for _, value_dim in seen) > 128
    assert len(seen) == 1 or not few_shapes


def test_few_shapes_are_compiled_for_all_laws():
    plan = Plan("kernel", "gla", function=linkern.gla)
    scope = opening.scope_of(plan, opening.open_target(plan), "float32")
    scope = replace(scope, few_shapes=True)
    signatures, cuts = set(), set()

    @settings(max_examples=400, suppress_health_check=list(HealthCheck), database=None)
    @given(draws.with_scale(draws.with_cuts(any_problem(scope))))
    def draw(problem):
        signatures.add((problem.shape, problem.knobs.get("scale")))
        cuts.add((problem.length, problem.knobs["cuts"]))

    draw()
    few = {(shape, scale) for shape, scale in signatures if shape.length <= 130}
    usual = {(shape, scale) for shape, scale in few if shape.key_dim == 4}
    assert len({shape.length for shape, _ in usual}) == len(usual)
    assert {"omitted", "halved", None} <= {scale for _, scale in usual}
    assert {4, 5} == {shape.value_dim for shape, _ in usual}
    assert len({each for each in cuts if each[0] == 130}) <= 3
