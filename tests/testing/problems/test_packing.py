"""Packed sequences: drawn lengths, and exact results from those of each sequence."""

import numpy as np
import pytest
from hypothesis import given, settings

import linkern
from linkern.testing.problems import packing, strategies
from linkern.testing.problems.context import Scope
from linkern.testing.problems.packing import Packing
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import OPERATORS

TWO_CALLS = Packing(((2, 0, 3), (1, 1, 0)))


def scope_of(op, **declared):
    return Scope(OPERATORS[op], Contract.from_mapping(declared), "float64")


def drawn(scope, *, calls=(1, 2, 3), gradients=False):
    """Return every kind of problem that twenty draws have."""
    problems = (
        strategies.gradient_problems(scope, least=3)
        if gradients
        else strategies.real_problems(scope, least=3)
    )
    seen = []

    @settings(max_examples=20, database=None, derandomize=True, deadline=None)
    @given(packing.with_packing(problems, calls=calls))
    def draw(problem):
        seen.append(problem)

    draw()
    return seen


@pytest.mark.parametrize(
    "declared", [{}, {"length_multiple_of": 4}, {"min_length": 3}, {"max_length": 9}]
)
def test_sequences_hold_all_tokens_but_the_slack_once(declared):
    scope = scope_of("simple_gla", **declared)
    unit, least = scope.contract.length_multiple_of, scope.contract.shortest
    for problem in drawn(scope):
        made = problem.knobs["packing"]
        tokens = np.concatenate(made.tokens())
        assert sorted(tokens) == list(range(made.ends[-1]))
        assert made.ends[-1] <= problem.length
        assert all(sum(row) > 0 for row in made.lengths) or len(made.lengths) == 1
        lengths = [n for row in made.lengths for n in row]
        assert all(n % unit == 0 and n >= least for n in lengths)
        assert problem.sizes["b"] == 1


def test_draws_have_empty_and_short_sequences_and_slack():
    problems = drawn(scope_of("gla"))
    lengths = [one.knobs["packing"].lengths for one in problems]
    cells = [n for table in lengths for row in table for n in row]
    assert {0, 1, 2, 3} <= {*cells}
    assert max(cells) > 16
    assert {len(table) for table in lengths} == {1, 2, 3}
    assert any(one.length > one.knobs["packing"].ends[-1] for one in problems)


@pytest.mark.parametrize("declared", [{}, {"length_multiple_of": 4}])
def test_sequences_that_must_fill_the_arrays_do(declared):
    for problem in drawn(scope_of("gla", packing="full", **declared)):
        assert problem.knobs["packing"].ends[-1] == problem.length


def test_draws_of_one_call_have_none_but_empty_sequences():
    problems = drawn(scope_of("gla"), calls=(1,))
    assert 0 in {one.knobs["packing"].ends[-1] for one in problems}


def test_the_text_of_a_packing_shows_its_lengths_call_by_call():
    assert repr(TWO_CALLS) == "2+0+3/1+1+0"


@pytest.mark.parametrize("op", ["linear_attention", "gated_delta_product", "rwkv6"])
def test_exact_results_are_those_of_calls_with_packed_sequences(op):
    problem = drawn(scope_of(op), calls=(1,), gradients=True)[-1]
    made = problem.knobs["packing"]
    (edges,) = made.segments
    function = getattr(linkern, op)
    output, pullback = linkern.vjp(function, **problem.inputs, cu_seqlens=edges)
    expected = packing.exact_outputs(problem).output
    got = output.output[..., : made.ends[-1], :]
    np.testing.assert_allclose(got, expected, 1e-10, 1e-10)
    states = packing.exact_states(problem)
    memory = output.state.memory[:, 0]
    np.testing.assert_allclose(memory, states[0].output, 1e-10, 1e-10)
    cotangent = problem.cotangent.copy()
    gradients = pullback(cotangent)
    for name, bounded in packing.exact_gradients(problem).items():
        got = gradients[name]
        np.testing.assert_allclose(got, bounded.output, 1e-9, 1e-9, err_msg=name)
        assert (bounded.bound >= 0).all()
