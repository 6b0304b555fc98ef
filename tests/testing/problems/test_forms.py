"""Forms of gates: meanings of what targets take, and slopes of those."""

import numpy as np
import pytest

from linkern.oracle import Bounded
from linkern.testing.errors import UsageError
from linkern.testing.problems.forms import SHUT, form_of, is_raw
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import OPERATORS
from linkern.testing.spec.raw_gates import gate_parameters

PER_TOKEN = OPERATORS["gated_delta_rule"].input("log_decay")
PER_CHANNEL = OPERATORS["kda"].input("log_decay")
RATE = OPERATORS["kda"].input("beta")
CASES = [
    (Contract(decay_log_base="2"), PER_CHANNEL),
    (Contract(decay_form="factor"), PER_CHANNEL),
    (Contract(decay_form="logsigmoid"), PER_TOKEN),
    (Contract(decay_form="softplus"), PER_TOKEN),
    (Contract(decay_form="softplus"), PER_CHANNEL),
    (Contract(decay_form="sigmoid", decay_floor=-5.0), PER_TOKEN),
    (Contract(decay_form="sigmoid", decay_floor=-5.0), PER_CHANNEL),
    (Contract(decay_form="softplus", gate_parameters="A_log"), PER_CHANNEL),
    (
        Contract(decay_form="sigmoid", decay_floor=-5.0, gate_parameters="dt_bias"),
        PER_CHANNEL,
    ),
    (Contract(beta_form="sigmoid"), RATE),
    (Contract(beta_form="twice_sigmoid"), RATE),
]


def drawn(one):
    """Return meanings with the axes of an input."""
    sizes = {"b": 2, "g": 3, "t": 5, "k": 4}
    rng = np.random.default_rng(0)
    meant = rng.uniform(0.01, 0.99, [sizes[axis] for axis in one.axes])
    return meant if one.name == "beta" else -4 * meant


@pytest.mark.parametrize(("contract", "one"), CASES)
def test_what_is_taken_has_the_meaning(contract, one):
    form, meant = form_of(contract, one), drawn(one)
    np.testing.assert_allclose(form.meaning(form.taken(meant)), meant, rtol=1e-12)


@pytest.mark.parametrize(("contract", "one"), CASES)
def test_slope_is_the_derivative(contract, one):
    form = form_of(contract, one)
    x, step = form.taken(drawn(one)), 1e-6
    quotient = (form.meaning(x + step) - form.meaning(x - step)) / (2 * step)
    np.testing.assert_allclose(form.slope(x), quotient, rtol=1e-6)


@pytest.mark.parametrize("heads", [1, 3])
def test_softplus_is_of_the_shifted_gate_times_the_rate_of_the_head(heads):
    x = np.random.default_rng(1).normal(size=(2, heads, 5, 4))
    rates, biases = gate_parameters(heads, 4)
    z = x + biases[:, None, :]
    expected = -np.exp(rates)[:, None, None] * np.log1p(np.exp(z))
    form = form_of(Contract(decay_form="softplus"), PER_CHANNEL)
    np.testing.assert_allclose(form.meaning(x), expected, rtol=1e-14)


def test_sigmoid_is_of_the_scaled_gate_and_ends_at_the_floor():
    x = np.random.default_rng(1).normal(size=(2, 3, 5))
    rates, biases = gate_parameters(3, None)
    y = np.exp(rates)[:, None] * (x + biases[:, None])
    form = form_of(Contract(decay_form="sigmoid", decay_floor=-5.0), PER_TOKEN)
    np.testing.assert_allclose(form.meaning(x), -5 / (1 + np.exp(-y)), rtol=1e-14)
    ends = np.array([0.0, -5.0, -np.inf]).reshape(1, 1, 3)
    assert form.meaning(form.taken(ends)).ravel().tolist()[1:] == [-5.0, -5.0]
    assert -1e-80 < form.meaning(form.taken(ends)).ravel()[0] <= 0


def test_logsigmoid_keeps_everything_and_nothing_at_its_ends():
    form = form_of(Contract(decay_form="logsigmoid"), PER_TOKEN)
    x = np.random.default_rng(1).normal(size=(2, 3, 5))
    np.testing.assert_allclose(
        form.meaning(x), np.log(1 / (1 + np.exp(-x))), rtol=1e-14
    )
    ends = form.meaning(form.taken(np.array([0.0, -np.inf])))
    assert ends[0] == 0
    assert np.exp(ends[1]) == 0


@pytest.mark.parametrize(("contract", "one"), CASES[3:])
def test_open_gates_and_rates_of_zero_are_the_same_number_in_every_place(contract, one):
    form = form_of(contract, one)
    assert (form.taken(np.zeros((2, 3, 5, 4)[: len(one.axes)])) == SHUT).all()
    assert form.taken(np.zeros(1)) == SHUT


def test_rates_of_one_are_exact_in_either_form():
    for form in ("sigmoid", "twice_sigmoid"):
        rates = form_of(Contract(beta_form=form), RATE)
        assert rates.meaning(rates.taken(np.array([0.0, 1.0]))).tolist() == [0.0, 1.0]


def test_parameters_that_a_kernel_does_not_take_are_zero():
    both, only = gate_parameters(3, 4), gate_parameters(3, 4, "dt_bias")
    assert not only[0].any()
    np.testing.assert_array_equal(only[1], both[1])
    only = gate_parameters(3, 4, "A_log")
    np.testing.assert_array_equal(only[0], both[0])
    assert not only[1].any()


def test_gate_parameters_are_those_of_raw_gates():
    with pytest.raises(UsageError, match=r"declare `decay_form` too"):
        Contract(gate_parameters="dt_bias")


def test_neighbouring_heads_and_channels_differ():
    rates, biases = gate_parameters(8, 16)
    assert (np.diff(rates) != 0).all()
    assert (np.diff(biases, axis=0) != 0).all()
    assert (np.diff(biases, axis=1) != 0).all()
    assert rates[0] != 0
    assert biases[0, 0] != 0
    for x in (rates, biases):
        np.testing.assert_array_equal(x, x.astype(np.float16))


def test_gradients_are_those_of_what_is_taken():
    form = form_of(Contract(decay_form="factor"), PER_TOKEN)
    gradient = Bounded(np.array([3.0, 0.0]), np.array([0.5, 0.0]))
    pulled = form.pulled_back(np.array([0.5, 0.0]), gradient, 0.25)
    assert pulled.output.tolist() == [6.0, 0.0]
    assert pulled.bound.tolist() == [1.0 + 4 * 0.25 * 3.5, np.inf]


def test_log_decays_and_rates_are_not_raw():
    assert not is_raw(Contract(), PER_TOKEN)
    assert not is_raw(Contract(decay_form="factor"), PER_TOKEN)
    assert is_raw(Contract(decay_form="softplus"), PER_TOKEN)
    assert is_raw(Contract(decay_form="logsigmoid"), PER_TOKEN)
    assert not is_raw(Contract(decay_form="softplus"), RATE)
    assert is_raw(Contract(beta_form="sigmoid"), RATE)
    assert form_of(Contract(), PER_TOKEN) is None
