"""Laws of states: tokens decoded one by one, and states that are only returned."""

import numpy as np
import pytest
from hypothesis import given, settings

import linkern
from linkern.testing.checks import states
from linkern.testing.checks.assertions import CheckedTarget
from linkern.testing.checks.findings import Tally
from linkern.testing.checks.replies import any_request, observed
from linkern.testing.problems.context import Scope
from linkern.testing.runner.opening import open_target, scope_of
from linkern.testing.runner.plan import Plan
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import OPERATORS
from tests.testing.checks.test_gated import judge


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


def gla(query, key, value, log_decay):
    return linkern.gla(query, key, value, log_decay)


def returning(state_of, **keywords):
    """A kernel that takes no state, and the verdict on what it returns as one."""

    def kernel(q, k, v, g):
        output, state = gla(q, k, v, g)
        return output, state_of(state.memory, q, v)

    def asked(q, k, v, g, output_final_state=False):
        output, state = kernel(q, k, v, g)
        return (output, state) if output_final_state else output

    chosen = asked if keywords.pop("asked", False) else kernel
    return judge(chosen, "gla", "state_value", **keywords)["state_value"]


def as_it_is(memory, _query, _value):
    return memory


def halved(memory, _query, _value):
    return memory / 2


def weights(_memory, query, _value):
    return np.zeros((*query.shape[:3], query.shape[2]), query.dtype)


def transposed(memory, _query, _value):
    return memory.swapaxes(-1, -2).copy()


@pytest.mark.parametrize(
    ("state_of", "options", "verdict"),
    [
        (as_it_is, {}, "passed"),
        (halved, {}, "failed"),
        (halved, {"asked": True}, "failed"),
        (halved, {"contract": {"returns_state": False}}, "skipped"),
        (transposed, {"contract": {"state_layout": "vk"}}, "passed"),
        # Of other shapes: nothing says that they are states.
        (transposed, {}, "skipped"),
        (transposed, {"contract": {"equal_dims": True}}, "skipped"),
        (halved, {"contract": {"equal_dims": True}}, "failed"),
        (weights, {}, "skipped"),
    ],
)
def test_a_final_state_is_judged_of_a_kernel_that_takes_none(
    state_of, options, verdict
):
    assert returning(state_of, **options).verdict == verdict


def test_a_memory_alone_is_judged_of_a_normalised_operator():
    def kernel(query, key, value):
        result = linkern.linear_attention(query, key, value)
        return result.output, result.state.memory

    result = judge(kernel, "linear_attention", "state_value")["state_value"]
    assert result.verdict == "passed"


def with_workspaces(count, *, takes_state):
    """A kernel whose final state lies in one of some arrays that it uses in turn."""
    kept = {}

    def placed(state):
        pool = kept.setdefault((state.shape, state.dtype.str), [])
        if len(pool) < count:
            pool.append(np.empty_like(state))
        pool.append(pool.pop(0))
        pool[-1][...] = state
        return pool[-1]

    def going_on(q, k, v, g, initial_state=None, output_final_state=False):
        output, state = linkern.gla(q, k, v, g, initial_state=initial_state)
        return (output, placed(state.memory)) if output_final_state else output

    def whole(q, k, v, g):
        output, state = gla(q, k, v, g)
        return output, placed(state.memory)

    return going_on if takes_state else whole


@pytest.mark.parametrize("takes_state", [True, False])
@pytest.mark.parametrize("count", [1, 2])
def test_a_state_that_a_later_call_changes_is_not_fresh(count, takes_state):
    kernel = with_workspaces(count, takes_state=takes_state)
    contract = {"mutates": "initial_state"}  # which is about states that are passed
    result = judge(kernel, "gla", "freshness", contract=contract)["freshness"]
    assert result.verdict == "failed"
    assert "changed the final state that an earlier call returned" in result.message


def test_a_state_in_the_memory_of_an_input_is_not_called_changed():
    def kernel(q, k, v, g):
        output, state = gla(q, k, v, g)
        return output, (state.memory, q[:], k[:], v[:], g[:])

    result = judge(kernel, "gla", "freshness")["freshness"]
    assert result.verdict == "passed"


@pytest.mark.parametrize("takes_state", [True, False])
def test_requests_hand_over_the_states_of_a_target_that_takes_them(takes_state):
    kernel = linkern.gla if takes_state else gla
    plan = Plan("kernel", "gla", function=kernel)
    target, tally = open_target(plan), Tally()
    scope, asked = scope_of(plan, target, "float32"), set()

    @settings(max_examples=40, database=None, derandomize=True, deadline=None)
    @given(any_request(scope))
    def request(problem):
        asked.add(problem.knobs["asked"])
        tally.start()
        observed(CheckedTarget(target, tally), problem)
        if problem.knobs["asked"] == "spans":
            assert tally.calls[-1].cuts == problem.knobs["cuts"]

    request()
    assert asked >= {"output", "state"}
    assert ("spans" in asked) == takes_state
