"""Kernels that normalise queries and keys themselves: where the epsilon is, shows."""

import numpy as np
import pytest

from linkern.testing.problems.context import Scope, Shape
from linkern.testing.problems.gates import real_problem
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import OPERATORS
from tests.testing.gated_targets import recurrent

EPSILON = 1e-6
PROBLEMS = 2000
OPERATORS_TRIED = ("gla", "delta_rule", "gated_delta_rule", "kda")


def inside(x, epsilon=EPSILON):
    squares = (x * x).sum(-1, keepdims=True)
    return x / np.sqrt(squares + x.dtype.type(epsilon))


def outside(x):
    norm = np.sqrt((x * x).sum(-1, keepdims=True))
    return x / (norm + x.dtype.type(EPSILON))


def reciprocal(x):
    """As many kernels do it: the sum in sequence, and a product with 1 / root."""
    squares = np.cumsum(x * x, axis=-1)[..., -1:] + x.dtype.type(EPSILON)
    return x * (x.dtype.type(1) / np.sqrt(squares))


def ratios(*normalising, count, dtype="float32", operators=OPERATORS_TRIED):
    """The largest error of each random problem, as a multiple of its bound.

    Every way of `normalising` is held to the same answers, which take longest.
    """
    for i in range(count):
        name = operators[i % len(operators)]
        rng = np.random.default_rng(i)
        t, k, v = (int(n) for n in rng.integers(1, (24, 17, 4)))
        shape = Shape(1, 2, t, t, k, v)
        scope = Scope(OPERATORS[name], Contract(l2norm=EPSILON), dtype)
        kind = ("mild", "strong", "open", "long")[rng.integers(4)]
        problem = real_problem(scope, shape, kind, "normal", rng)
        due = problem.solve()
        allowed = due.bound + np.spacing(abs(due.output).astype(dtype))
        yield [
            float((abs(output_of(problem, name, x) - due.output) / allowed).max())
            for x in normalising
        ]


def output_of(problem, name, normalise):
    of = problem.inputs
    output, _ = recurrent(
        normalise(of["query"]),
        normalise(of["key"]),
        of["value"],
        of.get("log_decay"),
        of.get("beta"),
        None,
        None,
        erases=name != "gla",
    )
    return output


@pytest.mark.slow
def test_an_epsilon_under_the_root_is_within_the_bound():
    for found in ratios(inside, reciprocal, count=PROBLEMS):
        assert max(found) < 1


@pytest.mark.parametrize(("dtype", "least"), [("float32", 0.6), ("float64", 0.9)])
def test_an_epsilon_outside_the_root_is_not(dtype, least):
    found = np.asarray(list(ratios(outside, count=100, dtype=dtype)))
    assert (found > 1).mean() > least


def test_no_epsilon_at_all_is_not():
    found = np.asarray(list(ratios(lambda x: inside(x, 0.0), count=100)))
    assert (found > 1).mean() > 0.6
