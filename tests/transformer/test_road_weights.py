"""A GRU's hidden states are averages; without feedback they need no loop."""

import numpy as np
import pytest
from hypothesis import given

import linkern
from linkern import State
from linkern.transformer.gru import GRU, gru, gru_gates
from linkern.transformer.road import (
    gated_average,
    gru_weights,
    unrolled,
    without_feedback,
)
from tests.transformer.road_problems import (
    FEW,
    FORMS,
    close,
    drawn,
    law_the_past_is_only_rescaled,
    loop,
    on,
    seeds,
    sizes,
)

# Products of gates.


def products(update, wrong=""):
    """The weights of a GRU as products, one by one, or a way to get them `wrong`."""
    length, channels = update.shape[-2:]
    weights = np.zeros((*update.shape[:-2], channels, length, 1 + length))
    for t in range(1, 1 + length):
        for j in range(t + 1):
            begin = {"too long": max(j, 1), "too short": j + 2}.get(wrong, j + 1)
            end = {"one step less": t}.get(wrong, t + 1)
            left = np.prod(1 - update[..., begin - 1 : end - 1, :], axis=-2)
            own = 1.0 if j == 0 else update[..., j - 1, :]
            if wrong == "exchanged":
                left = np.prod(update[..., begin - 1 : end - 1, :], axis=-2)
                own = 1.0 if j == 0 else 1 - update[..., j - 1, :]
            if wrong == "not written":
                own = 1.0
            if wrong == "no initial state" and j == 0:
                own = 0.0
            weights[..., t - 1, j] = own * left
    if wrong == "quotients":  # of products up to t and up to j
        kept = np.cumulative_prod(1 - update, axis=-2, include_initial=True)
        kept = np.moveaxis(kept, -2, -1)
        own = np.moveaxis(update, -2, -1)
        own = np.concatenate([np.ones_like(own[..., :1]), own], axis=-1)
        with np.errstate(all="ignore"):
            ratio = kept[..., 1:, None] / kept[..., None, :]
            weights = np.tril(ratio * own[..., None, :], k=1)
    return weights


def law_rows_sum_to_one(weights, update):
    rows = weights(update)
    assert np.all(rows >= 0)
    close(rows.sum(axis=-1), np.ones(rows.shape[:-1]))


def law_weights_are_the_products(weights, update):
    close(weights(update), products(update))


def law_the_last_open_gate_takes_all(weights, update):
    open_or_shut = np.round(update)
    rows = weights(open_or_shut)
    length = update.shape[-2]
    for t in range(1, 1 + length):
        behind = open_or_shut[..., :t, :]
        behind = np.concatenate([np.ones_like(behind[..., :1, :]), behind], axis=-2)
        last = t - np.argmax(np.flip(behind, axis=-2), axis=-2)
        assert np.array_equal(rows[..., t - 1, :], np.eye(1 + length)[last])


WEIGHTS_LAWS = {
    law_rows_sum_to_one: ("too long", "too short", "not written", "no initial state"),
    law_weights_are_the_products: (
        *("exchanged", "too long", "too short", "one step less"),
        *("not written", "no initial state", "quotients"),
    ),
    law_the_last_open_gate_takes_all: ("exchanged", "too short", "no initial state"),
    law_the_past_is_only_rescaled: ("exchanged", "one step less", "quotients"),
}


@pytest.mark.parametrize("law", WEIGHTS_LAWS)
def test_laws_of_the_weights_of_a_gru(eager_lib, law):
    @FEW
    @given(seeds(), sizes())
    def holds(rng, size):
        law(on(eager_lib, gru_weights), drawn(rng, *size)[0])

    holds()


@pytest.mark.parametrize(
    ("law", "wrong"),
    [(law, wrong) for law, names in WEIGHTS_LAWS.items() for wrong in names],
)
def test_laws_of_the_weights_fail_on_mutants(law, wrong):
    update = drawn(np.random.default_rng(0), (2,), 7, 3)[0]
    law(products, update)
    with pytest.raises(AssertionError):
        law(lambda update: products(update, wrong), update)


# The same hidden states: loop, matrix, hgrn.


def from_weights(wrong):
    def run(update, candidate, first):
        columns = np.concatenate([first[..., None, :], candidate], axis=-2)
        return np.einsum("...dts,...sd->...td", products(update, wrong), columns)

    return run


def from_hgrn(wrong):
    def run(update, candidate, first):
        with np.errstate(divide="ignore"):
            log_decay = np.log(update if wrong == "decay is the gate" else 1 - update)
        if wrong == "decays cumulated before":
            log_decay = np.cumulative_sum(log_decay, axis=-2)
        value = candidate if wrong == "not written" else update * candidate
        state = (
            None if wrong == "no initial state" else State(first[..., None, :], None)
        )
        return linkern.hgrn(value, log_decay, initial_state=state).output

    return run


def law_states_are_those_of_the_loop(states, update, candidate, first):
    close(states(update, candidate, first), loop(update, candidate, first))


@pytest.mark.parametrize("form", ["unrolled", *FORMS])
def test_hidden_states_are_those_of_the_loop(eager_lib, form):
    function = on(eager_lib, unrolled if form == "unrolled" else gated_average)
    options = {} if form == "unrolled" else {"form": form}

    @FEW
    @given(seeds(), sizes())
    def holds(rng, size):
        law_states_are_those_of_the_loop(
            lambda *inputs: function(*inputs, **options), *drawn(rng, *size)
        )

    holds()


@pytest.mark.parametrize(
    "states",
    [
        from_weights(w)
        for w in ("exchanged", "too long", "too short", "no initial state")
    ]
    + [
        from_hgrn(wrong)
        for wrong in (
            "decay is the gate",
            "decays cumulated before",
            "not written",
            "no initial state",
        )
    ],
)
def test_the_loop_tells_mutants_apart(states):
    inputs = drawn(np.random.default_rng(0), (2,), 7, 3)
    law_states_are_those_of_the_loop(from_weights(""), *inputs)
    law_states_are_those_of_the_loop(from_hgrn(""), *inputs)
    with pytest.raises(AssertionError):
        law_states_are_those_of_the_loop(states, *inputs)


def network(lib, rng, lead=(), length=6, width=3, hidden=4):
    parameters = GRU.create(width, hidden, rng=rng, like=lib.array(np.zeros(1)))
    x = lib.array(rng.normal(size=(*lead, length, width)))
    return parameters, x, lib.array(rng.normal(size=(*lead, hidden)))


@pytest.mark.parametrize("lead", [(), (2,)])
def test_a_whole_gru_is_unrolled(eager_lib, lead):
    for seed in range(5):
        parameters, x, first = network(eager_lib, np.random.default_rng(seed), lead)
        result = gru(parameters, x, first)
        got = eager_lib.numpy(unrolled(*result.gates, first))
        close(got, eager_lib.numpy(result.output))


def law_no_loop_is_needed(cut, lib, form, seed):
    """A GRU that does not feed its state back is hgrn, with gates known beforehand."""
    parameters, x, first = network(lib, np.random.default_rng(seed), (2,))
    parameters = cut(parameters)
    # Any hidden states will do; zeros are at hand.
    gates = gru_gates(parameters, first[..., None, :] * 0, x)
    got = gated_average(*gates, first, form=form)
    close(lib.numpy(got), lib.numpy(gru(parameters, x, first).output))


@pytest.mark.parametrize("form", FORMS)
def test_without_feedback_no_loop_is_needed(eager_lib, form):
    for seed in range(5):
        law_no_loop_is_needed(without_feedback, eager_lib, form, seed)


def test_with_feedback_it_is(eager_lib):
    with pytest.raises(AssertionError):
        law_no_loop_is_needed(lambda parameters: parameters, eager_lib, "parallel", 0)


def test_products_have_the_gradient_of_the_loop_at_gates_of_zero_and_one(torch):
    update, candidate, first = drawn(np.random.default_rng(2), (2,), 6, 2)
    assert {0.0, 1.0} <= set(update.flat)
    z, c, h = (torch.tensor(x, requires_grad=True) for x in (update, candidate, first))
    unrolled(z, c, h).sum().backward()
    got, z.grad, state = z.grad, None, h
    total = 0.0
    for t in range(6):
        state = (1 - z[..., t, :]) * state + z[..., t, :] * c[..., t, :]
        total = total + state.sum()
    total.backward()
    close(got.numpy(), z.grad.numpy())
