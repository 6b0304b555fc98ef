"""Neutral tokens leave the memory as it is, so they can be left out, bit for bit."""

import numpy as np
import pytest

from linkern.oracle import OPERATORS
from linkern.testing.problems.context import Scope, Shape
from linkern.testing.problems.sparse import (
    active_tokens,
    at_tokens,
    judged_tokens,
    no_neutral,
    sparse_problem,
)
from linkern.testing.spec.contract import Contract

LENGTH = 300
NEUTRAL = [name for name, one in OPERATORS.items() if one.neutral is not None]


def long_problem(op, seed=0, **declared):
    operator = OPERATORS[op]
    micro = 2 if operator.micro_steps else 1
    slots = 3 if "slots" in operator.names else 1
    few = Shape(1, 2, 64, 64 * micro, 4, 3, slots=slots)
    scope = Scope(operator, Contract(**declared), "float64")
    rng = np.random.default_rng(seed)
    return sparse_problem(scope, few, LENGTH, rng, dense=3)


def evaluated(problem):
    inputs = {name: x.astype(np.float64) for name, x in problem.inputs.items()}
    return problem.scope.operator.evaluate(inputs)


@pytest.mark.parametrize("op", NEUTRAL)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_answer_is_that_of_the_tokens_that_write(op, seed):
    problem = long_problem(op, seed)
    tokens = judged_tokens(problem)
    whole, few = evaluated(problem), evaluated(at_tokens(problem, tokens))
    np.testing.assert_array_equal(whole.output[..., tokens, :], few.output)
    for one, other in zip(whole.state, few.state, strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(active_tokens(problem)) < LENGTH / 4
    assert np.ptp(few.output, axis=-2).all()  # it says something of every channel


@pytest.mark.parametrize("op", ["gla", "kda", "linear_attention", "abc"])
def test_a_token_left_out_that_writes_changes_the_answer(op):
    problem = long_problem(op)
    tokens = judged_tokens(problem)
    lost = active_tokens(problem)[1]
    kept = tokens[tokens != lost]
    whole, few = evaluated(problem), evaluated(at_tokens(problem, kept))
    assert (whole.output[..., kept, :] != few.output).any()


def test_operators_without_neutral_tokens_say_so():
    others = {name for name in OPERATORS if name not in NEUTRAL}
    assert others == {
        "retention",
        "lightning_attention",
        "based",
        "log_linear_attention",
        *("mamba3", "mamba3_mimo"),  # any token is the last one, which the next writes
    }
    for name in others:
        assert "every token" in no_neutral(
            Scope(OPERATORS[name], Contract(), "float32")
        )


@pytest.mark.parametrize(
    "declared", [{"decay_form": "factor"}, {"decay_log_base": "2"}]
)
def test_gates_are_open_as_they_are_declared(declared):
    problem = long_problem("gla", **declared)
    silent = np.setdiff1d(np.arange(LENGTH), active_tokens(problem))
    number = 1.0 if "decay_form" in declared else 0.0
    assert (problem.inputs["log_decay"][..., silent, :] == number).all()


@pytest.mark.parametrize("op", ["gla", "kda", "gated_delta_product"])
def test_no_chunk_size_narrows_the_bound_of_the_few(op):
    problem = long_problem(op, chunk_size=64)
    few = at_tokens(problem, judged_tokens(problem))
    assert few.scope.contract.chunk_size is None
    assert np.isfinite(few.solve().bound).all()
