"""The search draws what follows from the seed, and nothing else."""

import sys
from dataclasses import replace
from types import ModuleType

from linkern.testing import CHECKS, Plan
from linkern.testing.checks.findings import Tally
from linkern.testing.kernels.correct import quadratic
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
