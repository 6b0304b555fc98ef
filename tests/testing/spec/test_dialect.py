"""Switches of published kernels and the declarations that they stand for."""

import pytest

from linkern.testing.spec.contract import Contract
from linkern.testing.spec.dialect import ARGUMENTS, settled, switch_names
from linkern.testing.spec.operators import OPERATORS

NOTHING = frozenset()


def agreed(contract, options, defaults, needed=NOTHING, op="kda"):
    result = settled(contract, options, defaults, needed, OPERATORS[op])
    return result.contract.declared(), dict(result.options)


@pytest.mark.parametrize(
    ("options", "declared"),
    [
        ({"use_qk_l2norm": True}, {"l2norm": 1e-6}),
        ({"use_qk_l2norm": False}, {}),
        ({"state_v_first": True}, {"state_layout": "vk"}),
        ({"transpose_state_layout": True}, {"state_layout": "vk"}),
        ({"use_exp2": True}, {"decay_log_base": "2"}),
        ({"head_first": False}, {"layout": "bthd"}),
        ({"head_first": True}, {}),
        ({"use_beta_sigmoid_in_kernel": True}, {"beta_form": "sigmoid"}),
        (
            {"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True},
            {"beta_form": "twice_sigmoid"},
        ),
        ({"use_gate_in_kernel": True}, {"decay_form": "softplus"}),
        (
            {"use_gate_in_kernel": True, "lower_bound": -4},
            {"decay_form": "sigmoid", "decay_floor": -4.0},
        ),
        ({"safe_gate": True}, {"decay_floor": -5.0}),
        ({"safe_gate": True, "lower_bound": -2.0}, {"decay_floor": -2.0}),
        ({"lower_bound": -2.0}, {}),
    ],
)
def test_options_declare(options, declared):
    assert agreed(Contract(), options, {}) == (declared, options)


def test_defaults_declare_as_options_do():
    assert agreed(Contract(), {}, {"use_qk_l2norm": True}) == ({"l2norm": 1e-6}, {})


def test_options_come_before_defaults():
    defaults, options = {"use_qk_l2norm": True}, {"use_qk_l2norm": False}
    assert agreed(Contract(), options, defaults) == ({}, options)


def test_what_means_nothing_for_an_operator_is_not_declared():
    options = {"use_gate_in_kernel": True, "use_beta_sigmoid_in_kernel": True}
    assert agreed(Contract(), options, {}, op="retention") == ({}, options)


@pytest.mark.parametrize(
    ("contract", "passed"),
    [
        (Contract(l2norm=1e-5), {"use_qk_l2norm": True}),
        (Contract(state_layout="vk"), {"state_v_first": True}),
        (Contract(beta_form="sigmoid"), {"apply_beta_sigmoid": True}),
        (
            Contract(beta_form="twice_sigmoid"),
            {"apply_beta_sigmoid": True, "allow_neg_eigval": True},
        ),
        (Contract(decay_form="softplus"), {"use_gate_in_kernel": True}),
        (
            Contract(decay_form="sigmoid", decay_floor=-3.0),
            {"use_gate_in_kernel": True, "lower_bound": -3.0, "safe_gate": True},
        ),
        (Contract(decay_floor=-5.0), {}),
        (Contract(decay_form="factor"), {}),
    ],
)
def test_declarations_pass_switches_that_a_target_has(contract, passed):
    defaults = dict.fromkeys(switch_names())
    del defaults["use_qk_l2norm_in_kernel"], defaults["use_beta_sigmoid_in_kernel"]
    declared, options = agreed(contract, {}, defaults)
    assert declared == contract.declared()
    assert options == passed
    assert agreed(contract, {}, {}) == (declared, {})


def test_a_bound_that_is_needed_is_minus_five():
    needed = frozenset({"A_log", "dt_bias", "lower_bound"})
    declared, options = agreed(Contract(), {}, {"lower_bound": None}, needed)
    assert declared == {"decay_form": "sigmoid", "decay_floor": -5.0}
    assert options == {"lower_bound": -5.0}


def test_arguments_that_say_nothing_are_passed_where_they_are_needed():
    _, options = agreed(Contract(), {}, {}, frozenset({"softplus_beta", "q"}))
    assert options == {"softplus_beta": ARGUMENTS["softplus_beta"]}
    told = {"softplus_beta": 2.0}
    assert agreed(Contract(), told, {}, frozenset(told))[1] == told
