"""The search draws what follows from the seed, and nothing else."""

import sys
from dataclasses import replace
from types import ModuleType

import pytest

from linkern.testing import CHECKS, Plan
from linkern.testing.checks.findings import Tally
from linkern.testing.kernels.correct import quadratic
from linkern.testing.runner.judging import judge
from linkern.testing.runner.opening import open_target, scope_of
from linkern.testing.runner.search import search


def drawn():
    """Return the problems of one check, in words."""
    plan = Plan("test", "linear_attention", function=quadratic)
    target, problems = open_target(plan), []

    def law(checked, problem):
        problems.append(repr(problem))
        checked.run(problem)

    check = replace(CHECKS["value_on_reals"], law=law)
    search(plan, check, scope_of(plan, target, "float32"), target, Tally())
    return problems


def test_inputs_do_not_depend_on_the_modules_that_are_loaded(tmp_path, monkeypatch):
    before = drawn()
    path = tmp_path / "numbers.py"
    path.write_text(f"x = {list(range(200, 320))}")
    module = ModuleType("numbers_of_a_user")
    module.__file__ = str(path)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert drawn() == before


@pytest.mark.parametrize("seed", range(4))
def test_examples_are_no_copies_of_each_other(seed):
    """Of 36 examples that are independent, so many are longer than 200 tokens."""
    plan = Plan("test", "linear_attention", function=quadratic, seed=seed)
    target, lengths = open_target(plan), []
    check = CHECKS["gradient_on_random_reals"]

    def law(checked, problem):
        del checked
        lengths.append(problem.length)

    check = replace(check, law=law)
    search(plan, check, scope_of(plan, target, "float64"), target, Tally())
    assert 2 <= sum(n > 200 for n in lengths) <= 16


@pytest.mark.parametrize("last", [False, True])
def test_a_failure_of_the_referee_passes_no_law(last):
    plan = Plan(
        "test", "linear_attention", function=quadratic, dtypes=("float32",), seed=3
    )
    target, left = open_target(plan), [8]

    def law(checked, problem):
        checked.run(problem)
        left[0] -= 1
        if not left[0] or not last:
            msg = "not a bug of the target"
            raise ValueError(msg)

    check = replace(CHECKS["value_on_reals"], law=law)
    result = judge(replace(plan, profile="smoke"), target, check, {}).result
    assert (result.verdict, result.examples) == ("error", 8 if last else 1)
    assert "not a bug of the target" in result.message
