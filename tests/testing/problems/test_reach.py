"""Lengths of problems: as long as bounds say something, and three chunks at least."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkern.testing import OPERATORS
from linkern.testing.problems import reach
from linkern.testing.problems import strategies as draws
from linkern.testing.problems.context import Scope
from linkern.testing.problems.generators import real_problem, with_cotangent
from linkern.testing.problems.shapes import nearest_shape, shapes
from linkern.testing.spec.contract import Contract


def scope_of(op, dtype="float64", **declared):
    return Scope(OPERATORS[op], Contract(**declared), dtype)


@pytest.mark.parametrize("op", OPERATORS)
def test_outputs_cross_chunks_of_64_to_512(op):
    single, double = (
        reach.of_outputs(scope_of(op, dtype)).most for dtype in ("float32", "float64")
    )
    assert single is None or single >= 300
    assert double is None or double >= 600


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_cross_three_chunks_of_64(op, dtype):
    assert reach.of_gradients(scope_of(op, dtype)).most >= 200


@pytest.mark.parametrize(
    "declared",
    [
        {"state_dtype": "bfloat16"},
        {"operand_dtype": "tfloat32"},
        {"accumulator_dtype": "float16"},
    ],
    ids=str,
)
def test_narrow_stages_leave_short_lengths(declared):
    assert reach.of_outputs(scope_of("kda", **declared)).most == 130
    assert reach.of_gradients(scope_of("kda", **declared)).most == 70


def test_large_dimensions_leave_what_a_dense_proof_can_hold():
    wide = reach.of_gradients(scope_of("kda", key_dims=(128,)))
    assert wide.most == 128
    assert wide.largest_dim(wide.keys) >= 128


@pytest.mark.parametrize("op", ["kda", "oja", "gated_delta_product", "dplr"])
@settings(max_examples=20)
@given(data=st.data())
def test_far_problems_are_small_in_all_else(op, data):
    scope = scope_of(op)
    far = reach.of_outputs(scope)
    shape = data.draw(shapes(scope, lengths=(1100,)))
    assert shape.length == far.most
    assert shape.batch == shape.heads == 1
    along = "v" if scope.operator.erase_along == "value" else "k"
    assert shape.sizes[along] <= far.largest_dim(shape.keys)


@pytest.mark.parametrize("op", ["kda", "rwkv7", "gated_delta_product"])
def test_the_longest_have_a_bound(op):
    scope, rng = scope_of(op), np.random.default_rng(0)
    far = reach.of_outputs(scope)
    most = min(far.most, far.keys // 2) if scope.operator.micro_steps else far.most
    shape = nearest_shape(scope, (1, 1, most, 4, 3))
    problem = real_problem(scope, shape, "typical", "normal", rng)
    assert np.isfinite(problem.solve().bound).all()
    shape = nearest_shape(scope, (1, 1, 200, 4, 3))
    problem = real_problem(scope, shape, "typical", "normal", rng)
    bounds = with_cotangent(problem, rng).solve_gradients().values()
    assert all(np.isfinite(one.bound).all() for one in bounds)


def test_strong_gates_stay_where_their_bound_is_finite():
    scope = scope_of("kda", "float32")
    kinds = draws._kinds(
        scope, draws.REAL_KINDS, nearest_shape(scope, (1, 1, 300, 4, 4))
    )
    assert "strong" not in kinds
    short = nearest_shape(scope, (1, 1, 100, 4, 4))
    assert "strong" in draws._kinds(scope, draws.REAL_KINDS, short)
