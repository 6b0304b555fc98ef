"""The oracle of every operator: values, and gradients by finite differences."""

import numpy as np
import pytest

from linkern.oracle import OPERATORS, Precisions, condition
from linkern.oracle.default_decays import lightning_log_decay, retention_log_decay
from tests.operators.paper_loops import over_heads
from tests.oracle.operator_problems import NAMES, earlier_state, heads_of, problem

GATED = [x for x in NAMES if "log_decay" in OPERATORS[x].input_names]
EXACT = {"rtol": 1e-11, "atol": 1e-12}


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def results(evaluation):
    return (evaluation.output, *evaluation.state)


def state_of(name, rng):
    return earlier_state(name, rng, groups=heads_of(name))


@pytest.mark.parametrize("decays", ["typical", "extreme"])
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_values_are_those_of_the_literal_loops(name, begun, decays, rng):
    inputs = problem(name, rng, 11, groups=heads_of(name), decays=decays)
    if name in {"retention", "lightning_attention"}:
        del inputs["log_decay"]
    state = state_of(name, rng) if begun else None
    where = {"position": 8} if begun and name == "log_linear_attention" else {}
    scale = OPERATORS[name].default_scale(inputs)
    found = OPERATORS[name].evaluate(inputs, scale, state, **where)
    output, states = over_heads(name, inputs, scale, state, **where)
    for got, due in zip(results(found), (output, *states), strict=True):
        assert got.shape == due.shape
        np.testing.assert_allclose(got, due, **EXACT)


@pytest.mark.parametrize("cut", [0, 1, 4, 9])
@pytest.mark.parametrize("name", [x for x in NAMES if OPERATORS[x].causal])
def test_a_call_can_be_cut_anywhere(name, cut, rng):
    op, inputs = OPERATORS[name], problem(name, rng, groups=heads_of(name))
    whole = op.evaluate(inputs)
    fixed = {one.name for one in op.inputs if not one.per_token} | {*op.defaults}

    def cut_to(x, first, last):
        steps = x.shape[2] // 9
        return x[:, :, steps * first : steps * last]

    first, second = (
        {k: x if k in fixed else cut_to(x, *span) for k, x in inputs.items()}
        for span in ((0, cut), (cut, 9))
    )
    before = op.evaluate(first)
    after = op.evaluate(second, state=before.state, position=cut)
    joined = np.concatenate([before.output, after.output], axis=-2)
    for got, due in zip((joined, *after.state), results(whole), strict=True):
        np.testing.assert_allclose(got, due, **EXACT)


def slope(loss, x, direction, step=1e-5):
    return (loss(x + step * direction) - loss(x - step * direction)) / (2 * step)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_finite_differences(name, rng):
    op, inputs = OPERATORS[name], problem(name, rng, groups=heads_of(name))
    state = state_of(name, rng)
    of = op.evaluate(inputs, state=state, position=8)
    cotangents = [rng.normal(size=x.shape) for x in results(of)]

    def loss(changed, begun):
        found = results(op.evaluate(changed, state=begun, position=8))
        pairs = zip(cotangents, found, strict=True)
        return sum((g * np.where(np.isfinite(x), x, 0)).sum() for g, x in pairs)

    found = op.gradients(
        inputs,
        cotangents[0],
        state=state,
        state_cotangent=tuple(cotangents[1:]),
        position=8,
    )
    assert set(found) == {*inputs, "initial_state"}
    for which, x in inputs.items():
        direction = rng.normal(size=x.shape)
        due = slope(lambda y, k=which: loss({**inputs, k: y}, state), x, direction)
        size = abs(found[which] * direction).sum()
        assert abs((found[which] * direction).sum() - due) < 1e-6 * size
    for i, x in enumerate(state):
        direction = rng.normal(size=x.shape)
        if name == "mesa":  # A matrix of moments stays symmetric.
            k = x.shape[-2]
            direction[..., :k] += np.swapaxes(direction[..., :k], -1, -2)
        due = slope(
            lambda y, i=i: loss(inputs, (*state[:i], y, *state[i + 1 :])), x, direction
        )
        got = found["initial_state"][i] * direction
        assert abs(got.sum() - due) < 1e-6 * abs(got).sum()


@pytest.mark.parametrize("name", GATED)
def test_a_closed_gate_has_no_slope_and_breaks_nothing(name, rng):
    inputs = problem(name, rng, groups=heads_of(name), decays="extreme")
    op = OPERATORS[name]
    inputs["log_decay"][..., -1] = -np.inf
    of = op.evaluate(inputs)
    states = tuple(rng.normal(size=x.shape) for x in of.state)
    found = op.gradients(inputs, np.ones(of.output.shape), state_cotangent=states)
    closed = np.isneginf(inputs["log_decay"])
    assert not found["log_decay"][closed].any()
    for x in (of.output, *found.values()):
        assert all(np.isfinite(y).all() for y in (x if isinstance(x, tuple) else (x,)))


@pytest.mark.parametrize("name", NAMES)
def test_no_token_leaves_the_state_as_it_was(name, rng):
    inputs = problem(name, rng, 0, groups=heads_of(name))
    state = state_of(name, rng)
    op = OPERATORS[name]
    found = op.evaluate(inputs, state=state, position=8)
    assert found.output.shape[-2] == 0
    for got, due in zip(found.state, state, strict=True):
        np.testing.assert_array_equal(got, due)
    output, states = op.bounded(inputs, None, Precisions("float32"), state=state)
    assert output.bound.shape == found.output.shape
    assert all(np.isfinite(x.bound).all() for x in states)


def test_gates_that_are_none_are_neutral(rng):
    inputs = problem("gated_delta_rule", rng)
    found = OPERATORS["gated_delta_rule"].evaluate(
        {**inputs, "log_decay": None, "beta": None}
    )
    neutral = np.zeros_like(inputs["log_decay"]), np.ones_like(inputs["beta"])
    names = ("log_decay", "beta")
    due = OPERATORS["gated_delta_rule"].evaluate(
        {**inputs, **dict(zip(names, neutral, strict=True))}
    )
    for got, x in zip(results(found), results(due), strict=True):
        np.testing.assert_allclose(got, x, **EXACT)


def test_an_unknown_input_is_refused(rng):
    with pytest.raises(ValueError, match=r"`inputs` of gla .* got \{'beta'\}"):
        OPERATORS["gla"].evaluate({**problem("gla", rng), "beta": np.ones(1)})


def test_fixed_decays_are_those_of_the_papers():
    np.testing.assert_allclose(np.exp(retention_log_decay(2)), [31 / 32, 63 / 64])
    assert list(lightning_log_decay(4, 1, 2)) == [0, -1, -2, -3]


def test_condition_sees_what_arithmetic_must_lose(rng):
    inputs = problem("delta_rule", rng, 20)
    op, ones = OPERATORS["delta_rule"], np.ones(inputs["value"].shape)
    mild = condition(op, inputs, ones)
    assert set(mild) == {"output", *inputs}
    assert all(0.1 < x < 1e3 for x in mild.values())
    # Erases of 10 k k^T enlarge the memory with every token.
    wild = condition(op, {**inputs, "beta": 10 * inputs["beta"]}, ones)
    assert wild["output"] > 2 * mild["output"]
