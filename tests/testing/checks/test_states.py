"""Laws of states: how many tokens are decoded one by one."""

import pytest
from hypothesis import given, settings

from linkern.testing.checks import states
from linkern.testing.problems.context import Scope
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import OPERATORS


@pytest.mark.parametrize(("interpreted", "most"), [(False, 24), (True, 6)])
def test_fewer_tokens_are_decoded_of_a_slow_kernel(monkeypatch, interpreted, most):
    scope = Scope(OPERATORS["gla"], Contract(), "float32", interpreted=interpreted)
    steps = []

    def split(_target, problem, cuts):
        assert cuts == (*range(cuts[0], problem.length),)
        steps.append(len(cuts))

    monkeypatch.setattr(states, "_require_split", split)

    @settings(max_examples=20, database=None, derandomize=True, deadline=None)
    @given(states._cut_problems(scope))
    def decode(problem):
        states.decoding(None, problem)

    decode()
    assert max(steps) == most
