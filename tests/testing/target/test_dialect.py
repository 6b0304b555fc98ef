"""Kernels with the signatures of published ones: recognised, faults reported."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from linkern.testing import UsageError, grade, run
from linkern.testing.api import plan_of
from linkern.testing.runner.first_call import VALUE_GROUPS
from linkern.testing.runner.loop import CheckFinished, Diagnosed, Opened
from linkern.testing.runner.reproduce import write
from tests.marks import every
from tests.testing.dialect_targets import (
    chunk_kda,
    flash_kda,
    fused_sigmoid_gating_delta_rule_update,
)

TARGETS = Path(__file__).parents[1] / "dialect_targets.py"
LAWS = ("value_on_integers", "value_on_reals", "state_value", "decay_extremes")
SOFTPLUS = {"decay_form": "softplus"}
SIGMOID = {"decay_form": "sigmoid", "decay_floor": -5.0}
SERVING = {
    "use_qk_l2norm_in_kernel": True,
    "use_gate_in_kernel": True,
    "use_beta_sigmoid_in_kernel": True,
    "state_v_first": True,
}
BOUNDED = {**SERVING, "safe_gate": True, "lower_bound": -5.0, "allow_neg_eigval": True}


def events(kernel, checks, contract, options, **others):
    plan = plan_of(
        kernel,
        op="kda" if "kda" in kernel.__name__ else "gated_delta_rule",
        checks=checks,
        contract={"layout": "bthd", **contract},
        dtypes=("float32",),
        options=options,
        **{"shrink": False, "diagnose": False, "profile": "quick", "seed": 3, **others},
    )
    return [*run(plan)]


def failures(kernel, contract=(), checks=LAWS, **options):
    """Return the laws that fail, with their messages."""
    ran = events(kernel, checks, dict(contract), options)
    results = [e.result for e in ran if isinstance(e, CheckFinished)]
    assert any(x.verdict in ("passed", "failed") for x in results)
    broken = ("failed", "error", "inconclusive")
    return {x.name: x.message for x in results if x.verdict in broken}


def opened(kernel, contract=(), **options):
    """Return contract and options that a run settles on, and its notes."""
    first = events(kernel, ("shape_and_dtype",), dict(contract), options)[0]
    assert isinstance(first, Opened)
    return first.plan.contract.declared(), dict(first.plan.options), first.notes


@pytest.mark.parametrize("options", every(2, [SERVING, {}, BOUNDED]))
def test_switches_of_a_right_kernel_need_no_declaration(options):
    assert failures(chunk_kda, **options) == {}


@pytest.mark.parametrize("contract", every(3, [SIGMOID, SOFTPLUS, {"l2norm": 1e-6}]))
def test_one_declaration_turns_the_switches_on(contract):
    assert failures(chunk_kda, contract) == {}


def test_parameters_that_only_raw_gates_need_are_recognised():
    kernel = fused_sigmoid_gating_delta_rule_update
    assert failures(kernel, use_qk_l2norm_in_kernel=True) == {}
    declared, options, notes = opened(kernel)
    assert declared["decay_form"] == "softplus"
    assert declared["beta_form"] == "sigmoid"
    assert options["softplus_threshold"] == 20.0
    assert any("it needs A_log and dt_bias" in note for note in notes)


@pytest.mark.parametrize(
    ("fault", "options"),
    [
        ("threshold", SERVING),
        ("bias", SERVING),
        ("rate", SERVING),
        ("bound", BOUNDED),
        ("mirrored", BOUNDED),
        ("bias", BOUNDED),
        ("logits", SERVING),
        ("twice", BOUNDED),
        ("epsilon", SERVING),
        ("transposed", SERVING),
    ],
)
def test_faults_in_gates_and_norms_are_caught(fault, options):
    # Keys as wide as values, so that a transposed memory has the right shape.
    contract = {"equal_dims": True} if fault == "transposed" else {}
    assert failures(chunk_kda, contract, fault=fault, **options)


@pytest.mark.parametrize("fault", ["threshold", "bias", "logits"])
def test_faults_of_kernels_that_decode_are_caught(fault):
    assert failures(fused_sigmoid_gating_delta_rule_update, fault=fault)


ALONE = {"A_log": {**SERVING, "dt_bias": None}, "dt_bias": {**BOUNDED, "A_log": None}}


@pytest.mark.parametrize("taken", ALONE)
def test_one_parameter_of_gates_alone_is_recognised(taken):
    assert failures(chunk_kda, **ALONE[taken]) == {}
    declared, _, notes = opened(chunk_kda, **ALONE[taken])
    assert declared["gate_parameters"] == taken
    (other,) = {"A_log", "dt_bias"} - {taken}
    assert f"gate_parameters={taken}, recognised: {other}=None" in notes


@pytest.mark.parametrize(("taken", "fault"), [("A_log", "rate"), ("dt_bias", "bias")])
def test_faults_in_the_parameter_that_is_taken_are_caught(taken, fault):
    assert failures(chunk_kda, fault=fault, **ALONE[taken])


def test_a_rate_that_is_not_one_is_caught():
    assert failures(chunk_kda, fault="head", **ALONE["dt_bias"])


def biased_kda(q, k, v, g, beta, dt_bias, lower_bound=-5.0, initial_state=None):
    """A kernel without `A_log`."""
    gates = {"A_log": None, "dt_bias": dt_bias, "lower_bound": lower_bound}
    gates |= {"use_gate_in_kernel": True, "initial_state": initial_state}
    return chunk_kda(q, k, v, g, beta, output_final_state=True, **gates)


def test_a_kernel_without_the_other_parameter_is_judged():
    assert failures(biased_kda, SIGMOID | {"gate_parameters": "dt_bias"}) == {}
    with pytest.raises(UsageError, match=r"must have parameters A_log and dt_bias"):
        events(biased_kda, LAWS, SIGMOID, {})


WRITES = {"beta_form": "sigmoid", "state_layout": "vk"}


def test_a_kernel_that_writes_its_results_is_judged():
    assert failures(flash_kda, WRITES, (*LAWS, "state_split")) == {}
    declared, options, _ = opened(flash_kda, WRITES)
    assert declared["decay_form"] == "sigmoid"
    assert options == {"lower_bound": -5.0}


@pytest.mark.parametrize("fault", ["bias", "mirrored", "logits", "unwritten"])
def test_faults_of_a_kernel_that_writes_its_results_are_caught(fault):
    assert failures(flash_kda, WRITES, fault=fault)


@pytest.mark.parametrize(
    ("fault", "contract", "words"),
    every(
        4,
        [
            ("bias", SOFTPLUS, "dt_bias left out"),
            ("rate", SOFTPLUS, "A_log in place of exp(A_log)"),
            ("mirrored", SIGMOID, "-exp(A_log) in place of exp(A_log)"),
            ("logits", {"beta_form": "sigmoid"}, "raw beta in place of beta"),
        ],
    ),
)
def test_faults_in_gates_are_named(fault, contract, words):
    checks, options = ("value_on_reals",), {"fault": fault}
    ran = events(chunk_kda, checks, contract, options, diagnose=True)
    (found,) = [e.diagnosis for e in ran if isinstance(e, Diagnosed)]
    assert f"as with `{words}`" in found.sentence


def test_notes_say_what_was_recognised_and_what_is_passed():
    declared, _, notes = opened(chunk_kda, **SERVING)
    assert declared == {
        "layout": "bthd",
        "decay_form": "softplus",
        "beta_form": "sigmoid",
        "state_layout": "vk",
        "l2norm": 1e-6,
        "value_groups": True,
    }
    assert VALUE_GROUPS in notes
    assert "l2norm=1e-06, recognised: use_qk_l2norm_in_kernel=True" in notes
    _, options, notes = opened(chunk_kda, SIGMOID)
    assert options == {
        "use_gate_in_kernel": True,
        "lower_bound": -5.0,
        "safe_gate": True,
    }
    assert "use_gate_in_kernel=True is passed" in notes


@pytest.mark.parametrize(("fault", "code"), [("bias", 1), ("", 0)])
def test_a_reproducer_passes_gates_and_arrays_to_write(fault, code, tmp_path):
    plan = plan_of(
        f"{TARGETS}:flash_kda",
        op="kda",
        checks=("value_on_reals",),
        contract={"layout": "bthd", **WRITES},
        dtypes=("float32",),
        options={"fault": "bias"},
        diagnose=False,
        profile="quick",
        seed=3,
        jobs=1,
    )
    ran = [*run(plan)]
    (result,) = [e.result for e in ran if isinstance(e, CheckFinished)]
    judged = replace(ran[0].plan, options={**ran[0].plan.options, "fault": fault})
    script = write(judged, result, result.counterexample, tmp_path)
    assert subprocess.run([sys.executable, script], check=False).returncode == code


def test_a_declaration_comes_before_what_is_recognised():
    declared, _, _ = opened(chunk_kda, {"l2norm": 1e-12}, **SERVING)
    assert declared["l2norm"] == 1e-12


def test_raw_gates_need_their_parameters():
    def plain_kda(q, k, v, g, beta): ...

    with pytest.raises(UsageError, match=r"must have parameters A_log and dt_bias"):
        events(plain_kda, LAWS, SOFTPLUS, {})


def test_a_candidate_does_not_choose_its_contract_by_a_default():
    def kda(q, k, v, g, beta, use_qk_l2norm_in_kernel=True):
        return chunk_kda(q, k, v, g, beta, use_qk_l2norm_in_kernel=True)[0]

    declared = {"layout": "bthd"}
    checks = ["value_on_integers", "value_on_reals"]
    assert grade(kda, op="kda", checks=checks, contract=declared).score == 0
    results = events(kda, checks, {}, {})
    verdicts = [e.result.verdict for e in results if isinstance(e, CheckFinished)]
    assert "failed" not in verdicts
