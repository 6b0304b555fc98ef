"""Bounds of a pair of memories, the first of which follows the second."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import linkern
from linkern.oracle import OPERATORS, Precisions
from linkern.oracle.recurrence import Terms, run
from linkern.testing.kernels.correct.momentum import by_tokens, in_pairs
from tests.oracle.operator_problems import earlier_state, problem

NAME = "momentum_delta_rule"
OPERATOR, FLOAT32 = OPERATORS[NAME], Precisions("float32")
DECAYS = st.sampled_from(["none", "mild", "typical", "strong", "extreme"])
FORMS = (
    {"form": "recurrent"},
    {"form": "parallel"},
    *({"form": "chunkwise", "chunk_size": n} for n in (4, 16, 64)),
)
SCALE = 0.25


def drawn(seed, length, decays):
    """Inputs of one head count and a state, all numbers of float32."""
    rng = np.random.default_rng(seed)
    inputs = problem(NAME, rng, length, 4, 4, groups=1, decays=decays)
    state = earlier_state(NAME, rng, key_dim=4, value_dim=4, groups=1)[0]
    return inputs, state.astype(np.float32).astype(np.float64)


def narrow(inputs):
    return {name: x.astype(np.float32) for name, x in inputs.items()}


def within(got, exact):
    error = abs(np.asarray(got, dtype=np.float64) - exact.output)
    return bool((error <= exact.bound).all())


def of_forms(inputs, state, form):
    state = linkern.State(state, None)
    made = linkern.momentum_delta_rule(
        **inputs, scale=SCALE, initial_state=state, **form
    )
    return made.output, made.state.memory


def of_kernels(inputs, state, kernel):
    return kernel(**inputs, scale=np.float32(SCALE), initial_state=state)


@given(st.integers(0, 2**16), st.integers(1, 60), DECAYS, st.integers(0, 6))
@settings(max_examples=40)
def test_every_order_of_float32_stays_within_the_bound(seed, length, decays, which):
    inputs, state = drawn(seed, length, decays)
    output, (memory,) = OPERATOR.bounded(inputs, SCALE, FLOAT32, state=(state,))
    call = (narrow(inputs), state.astype(np.float32))
    if which < len(FORMS):
        got, left = of_forms(*call, FORMS[which])
    else:
        got, left = of_kernels(*call, (by_tokens(), in_pairs)[which - len(FORMS)])
    assert got.dtype == left.dtype == np.float32
    assert within(got, output)
    assert within(left, memory)


@given(st.integers(0, 2**16), st.integers(1, 40), DECAYS, st.sampled_from(FORMS))
@settings(max_examples=25)
def test_gradients_of_every_order_stay_within_their_bounds(seed, length, decays, form):
    inputs, state = drawn(seed, length, decays)
    for name in ("log_decay", "momentum_log_decay"):
        inputs[name] = np.maximum(inputs[name], -1e4)
    rng = np.random.default_rng(seed)
    shapes = inputs["value"].shape, state.shape
    cotangents = [rng.normal(size=x).astype(np.float32) for x in shapes]
    exact = OPERATOR.bounded_gradients(
        inputs,
        cotangents[0],
        SCALE,
        FLOAT32,
        state=(state,),
        state_cotangent=(cotangents[1],),
    )
    first = linkern.State(state.astype(np.float32), None)
    _, pullback = linkern.vjp(
        linkern.momentum_delta_rule,
        **narrow(inputs),
        scale=SCALE,
        initial_state=first,
        **form,
    )
    gradients = pullback(cotangents[0], linkern.State(cotangents[1], None))
    assert within(gradients.pop("initial_state").memory, exact.pop("initial_state"))
    assert {name for name in exact if not within(gradients[name], exact[name])} == set()


@pytest.mark.parametrize("wrong", [{"undecayed": True}, {"late": True}], ids=str)
def test_another_rule_is_outside_of_the_bound(wrong):
    inputs, state = drawn(0, 12, "mild")
    output, (memory,) = OPERATOR.bounded(inputs, SCALE, FLOAT32, state=(state,))
    call = (narrow(inputs), state.astype(np.float32))
    got, left = of_kernels(*call, by_tokens(**wrong))
    assert not within(got, output)
    assert not within(left, memory)


def test_one_half_follows_the_other_after_the_write():
    one = np.ones((1, 1))
    channels = {
        "query": np.asarray([[1.0, 0.0]]),
        "key": np.asarray([[0.0, 1.0]]),
        "erase": np.asarray([[1.0, 0.0]]),
    }
    terms = Terms(**channels, value=7 * one, factor=one, follow=0.5 * one)
    ran = run(terms, np.asarray([[3.0], [2.0]]))
    # 7 - 3 is written beside 2, and half of their sum reaches the 3.
    np.testing.assert_array_equal(ran.last, [[6.0], [6.0]])
    np.testing.assert_array_equal(ran.reads, [[6.0]])


@pytest.mark.parametrize("decays", ["none", "mild", "typical"])
def test_the_bound_says_something(decays):
    """Of fewer tokens than bounds of other erases: a momentum makes errors grow."""
    inputs = problem(NAME, np.random.default_rng(0), 32, 16, 16, decays=decays)
    output, states = OPERATOR.bounded(inputs, None, FLOAT32)
    assert output.bound.max() < 0.05 * abs(output.output).max()
    cotangent = np.random.default_rng(1).normal(size=output.output.shape)
    gradients = OPERATOR.bounded_gradients(inputs, cotangent, None, FLOAT32)
    for name in ("query", "key", "value", "beta", "momentum_beta"):
        assert gradients[name].bound.max() < abs(gradients[name].output).max()
    for x in (*states, *gradients.values()):
        assert np.isfinite(x.bound).all()
