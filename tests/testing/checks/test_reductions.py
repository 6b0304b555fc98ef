"""Problems on which one operator is another."""

import numpy as np
import pytest

from linkern.testing import run
from linkern.testing.api import plan_of
from linkern.testing.kernels.correct.mlstm import by_tokens, floored
from linkern.testing.problems.context import Scope, Shape
from linkern.testing.problems.gates import real_problem
from linkern.testing.problems.reductions import restricted
from linkern.testing.runner.loop import CheckFinished
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import OPERATORS

MLSTM = OPERATORS["mlstm"]
(TO_SIMPLE_GLA,) = MLSTM.reductions


def verdict(kernel):
    plan = plan_of(
        kernel,
        op="mlstm",
        checks=("reduction",),
        dtypes=("float32",),
        profile="quick",
        shrink=False,
        diagnose=False,
        seed=0,
    )
    (result,) = [e.result for e in run(plan) if isinstance(e, CheckFinished)]
    return result.verdict


def epsilon_beside_the_floor(above, below, log_weight):
    """Divide by more than the floor, as published kernels do: by so much more."""
    return floored(above, below, log_weight) / (1 + 1e-4)


def without_a_floor(above, below, log_weight):
    del log_weight
    return above / np.where(below == 0, 1, abs(below))


@pytest.mark.parametrize("divide", [epsilon_beside_the_floor, without_a_floor])
def test_mlstm_that_divides_by_more_or_less_than_one_is_not_simple_gla(divide):
    assert verdict(by_tokens(divide)) == "failed"


def test_mlstm_with_small_scores_is_simple_gla():
    assert verdict(by_tokens()) == "passed"


@pytest.mark.parametrize("scale", [None, 8.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_small_scores_add_up_to_one_at_most(dtype, scale):
    scope = Scope(MLSTM, Contract(scale=scale), dtype)
    rng = np.random.default_rng(0)
    shape = Shape(2, 3, 40, 40, 6, 4)
    problem = real_problem(scope, shape, "mild", "uniform", rng)
    inside = restricted(problem, TO_SIMPLE_GLA)
    query, key = (inside.inputs[name].astype(float) for name in ("query", "key"))
    factor = 6**-0.5 if scale is None else scale
    scores = np.tril(abs(query) @ abs(key).swapaxes(-1, -2)).sum(axis=-1)
    assert 0.25 < factor * scores.max() <= 1
    # The others are what they were, and queries are only scaled.
    powers = np.log2(problem.query / inside.query)
    np.testing.assert_array_equal(powers, powers.flat[0])
    assert powers.flat[0] == np.rint(powers.flat[0])
    assert not inside.inputs["input_gate"].any()
    np.testing.assert_array_equal(
        inside.inputs["log_decay"], problem.inputs["log_decay"]
    )
