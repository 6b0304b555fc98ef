"""A change of one number, or a swap of two, that every exact output shows."""

import numpy as np
import pytest

from linkern.testing import OPERATORS, Contract
from linkern.testing.problems.changes import CHANGES, shown_change
from linkern.testing.problems.context import Scope, Shape
from linkern.testing.problems.generators import integer_problem, real_problem

SHAPE = Shape(2, 2, 7, 7, 4, 3)


def drawn(op, *, integers=False):
    scope, rng = (
        Scope(OPERATORS[op], Contract(), "float32"),
        np.random.default_rng(0),
    )
    if integers:
        return integer_problem(scope, SHAPE, "dense", "dense", rng)
    kind = "uniform" if scope.operator.feature_map else "mild"
    return real_problem(scope, SHAPE, kind, "normal", rng)


@pytest.mark.parametrize("integers", [False, True])
@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("op", ["linear_attention", "kda"])
def test_as_little_as_possible_changes_and_the_output_shows_it(op, kind, integers):
    problem = drawn(op, integers=integers)
    shown = 0
    for seed in range(6):
        for name, x in problem.inputs.items():
            changed = shown_change(problem, name, kind, np.random.default_rng(seed))
            if changed is None:
                continue
            shown += 1
            other = changed.inputs[name]
            assert (other != x).sum() == (1 if kind == "one number" else 2)
            if kind == "two swapped":
                assert sorted(other.ravel()) == sorted(x.ravel())
            moved = abs(changed.solve().output - problem.solve().output)
            assert (moved > changed.solve().bound + problem.solve().bound).any()
    assert shown > 6


def test_nothing_is_changed_where_no_output_could_show_it():
    problem = drawn("linear_attention")
    same = problem.with_inputs(value=np.ones_like(problem.value))
    rng = np.random.default_rng(0)
    assert shown_change(same, "query", "one number", rng) is None
    assert shown_change(same, "value", "two swapped", rng) is None


def test_what_has_no_numbers_has_none_to_change():
    empty = drawn("linear_attention").prefix(0)
    rng = np.random.default_rng(0)
    assert shown_change(empty, "value", "one number", rng) is None
