"""Planted defects of operators with gates: all are caught, and many are named."""

import pytest

from linkern.testing import CHECKS, Plan, run
from linkern.testing.diagnosis.diagnose import diagnose
from linkern.testing.kernels.gated import GATED_CORRECT, GATED_MUTANTS
from linkern.testing.problems.context import Scope
from linkern.testing.runner.loop import CheckFinished
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import OPERATORS
from linkern.testing.target.memory_layout import STYLES
from linkern.testing.target.process import InProcess
from linkern.testing.target.protocol import TargetConfig
from tests.testing.panel import panels, verdict_on_all

NAMED = [name for name, mutant in GATED_MUTANTS.items() if mutant.cause]


def verdicts(kernel, *checks, seed=0):
    plan = Plan(
        "test",
        kernel.op,
        contract=Contract(**kernel.contract),
        dtypes=("float32",),
        profile="quick",
        function=kernel.kernel,
        diagnose=False,
        shrink=False,
        checks=checks,
        seed=seed,
    )
    return {e.result.name: e.result for e in run(plan) if isinstance(e, CheckFinished)}


def laws_of(op):
    of_op = (mutant for mutant in GATED_MUTANTS.values() if mutant.op == op)
    return {mutant.laws[0] for mutant in of_op} | {"value_on_reals", "shard_law"}


def declared(kernel):
    return {"op": kernel.op, "contract": Contract(**kernel.contract)}


def together():
    """Yield kernels of one operator, contract and interface: they are judged as one."""
    for kernel in GATED_CORRECT.values():
        of = declared(kernel)
        alike = {n: k.kernel for n, k in GATED_CORRECT.items() if declared(k) == of}
        for names in panels(alike, **of):
            if kernel is GATED_CORRECT[names[0]]:
                yield names


PANELS = [*together()]


@pytest.mark.parametrize(
    ("check", "names"),
    [
        pytest.param(check, names, id=f"{check}-{names[0]}")
        for names in PANELS
        for check in sorted(laws_of(GATED_CORRECT[names[0]].op))
    ],
)
def test_correct_kernels_pass(check, names, monkeypatch):
    result = verdict_on_all(
        monkeypatch,
        {name: GATED_CORRECT[name].kernel for name in names},
        check,
        **declared(GATED_CORRECT[names[0]]),
        dtypes=("float32",),
        profile="quick",
        shrink=False,
        seed=1,
    )
    # No bound can be proved of some gates: that is said, and no complaint.
    silent = ("passed", "unsupported", "inconclusive")
    assert result.verdict in silent, result.message


def test_every_correct_kernel_is_judged_once():
    judged = [name for names in PANELS for name in names]
    assert sorted(judged) == sorted(GATED_CORRECT)


@pytest.mark.parametrize("name", GATED_MUTANTS)
def test_mutants_fail_the_law_that_they_break(name):
    mutant = GATED_MUTANTS[name]
    (result,) = verdicts(mutant, mutant.laws[0]).values()
    assert result.verdict == "failed", result


@pytest.mark.parametrize(
    "name", ["memory_saturates", "initial_state_decays_too_little"]
)
def test_shards_that_do_not_compose_are_found(name):
    (result,) = verdicts(GATED_MUTANTS[name], "shard_law").values()
    assert result.verdict == "failed"
    assert "composed" in result.message


def test_rows_after_the_last_packed_sequence_must_be_written():
    mutant = GATED_MUTANTS["packed_slack_not_written"]
    (result,) = verdicts(mutant, "packed_equals_separate").values()
    assert "are not finite" in result.message


def cause(kernel, dtype="float32"):
    contract = Contract(**kernel.contract)
    environment = TargetConfig("test", op=kernel.op, scale=contract.scale)
    target = InProcess(environment, kernel.kernel)
    interface = target.interface
    operator = OPERATORS[kernel.op]
    found = diagnose(
        target,
        Scope(operator, contract, dtype, interface=interface, styles=tuple(STYLES)),
    )
    return found and found.name


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", GATED_CORRECT)
def test_no_correct_kernel_is_named(name, dtype):
    assert cause(GATED_CORRECT[name], dtype) is None


@pytest.mark.parametrize("name", NAMED)
def test_mutants_are_named(name):
    assert cause(GATED_MUTANTS[name]) == GATED_MUTANTS[name].cause


@pytest.mark.parametrize("name", [n for n in GATED_MUTANTS if n not in NAMED])
def test_what_nothing_predicts_is_not_named(name):
    assert cause(GATED_MUTANTS[name]) is None


def test_there_are_enough_of_both():
    assert len(GATED_MUTANTS) >= 28
    assert len(NAMED) >= 28
    assert len({mutant.op for mutant in GATED_MUTANTS.values()}) >= 9
    assert all("#" in mutant.precedent for mutant in GATED_MUTANTS.values())
    laws = {law for mutant in GATED_MUTANTS.values() for law in mutant.laws}
    assert laws <= set(CHECKS)
