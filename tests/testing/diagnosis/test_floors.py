"""Divisors in place of that of xLSTM are named, and nothing else is."""

import numpy as np
import pytest

from linkern.testing.api import plan_of
from linkern.testing.diagnosis.diagnose import diagnose
from linkern.testing.kernels.correct.mlstm import by_tokens
from linkern.testing.problems.context import Scope
from linkern.testing.runner.opening import open_target, scope_of
from tests.marks import every

OVER_M = "max(|q . n|, e^m), m the largest logarithm of the row"


def cause(divide):
    """The diagnosis of a kernel that divides in a way of its own."""
    plan = plan_of(by_tokens(divide), op="mlstm", dtypes=("float32",))
    target = open_target(plan)
    scope: Scope = scope_of(plan, target, "float32")
    return diagnose(target, scope)


@pytest.mark.parametrize(
    ("divide", "words"),
    every(
        3,
        [
            (lambda above, below, _: above / np.maximum(abs(below), 1), OVER_M),
            (
                lambda above, below, m: above / (abs(below) + np.exp(-m)),
                "|q . n| + 1",
            ),
            (lambda above, below, _: above / abs(below), "|q . n| alone"),
            (
                lambda above, below, m: above / np.maximum(below, np.exp(-m)),
                "max(q . n, 1)",
            ),
        ],
        slow=0.5,
    ),
)
def test_other_divisors_are_named(divide, words):
    diagnosis = cause(divide)
    assert (diagnosis.stage, diagnosis.where) == ("output", "everywhere")
    assert diagnosis.by_what == words
    said = f"is divided by `{words}` in place of `max(|q . n|, 1)`"
    assert said in diagnosis.sentence


def test_another_multiple_of_rows_is_no_divisor():
    def doubled(above, below, m):
        return 2 * above / np.maximum(abs(below), np.exp(-m))

    assert cause(doubled).by_what == "2"
