"""Causes are named: of mutants, and of no correct kernel."""

import pytest

from linkern.testing.diagnosis.diagnose import diagnose
from linkern.testing.kernels.correct import CORRECT
from linkern.testing.kernels.mutants import MUTANTS
from linkern.testing.problems.context import Scope
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import OPERATORS
from linkern.testing.target.memory_layout import STYLES
from linkern.testing.target.process import InProcess
from linkern.testing.target.protocol import TargetConfig
from tests.marks import slow_unless

LINEAR = "linear_attention"
DTYPES = {LINEAR: ("float32", "float64", "bfloat16")}
# Defects that do not show in a dtype, besides those that are none there.
HIDDEN = {("all_in_float16", "bfloat16")}


# By default, one of three causes of linear attention, and a mutant of each operator.
LINEAR_CAUSES = {m.cause: n for n, m in MUTANTS.items() if m.cause and m.op == LINEAR}
CHOSEN = (
    *[*LINEAR_CAUSES.values()][::3],
    *{m.op: n for n, m in MUTANTS.items() if m.cause and m.op != LINEAR}.values(),
)


def in_float32(_, dtype):
    return dtype == "float32"


def cause(kernel, dtype="float32"):
    contract = Contract(**kernel.contract)
    environment = TargetConfig("test", op=kernel.op, scale=contract.scale)
    target = InProcess(environment, kernel.kernel)
    scope = Scope(
        OPERATORS[kernel.op],
        contract,
        dtype,
        interface=target.interface,
        styles=tuple(STYLES),
    )
    diagnosis = diagnose(target, scope)
    return diagnosis and diagnosis.name


@pytest.mark.parametrize(
    ("name", "dtype"),
    slow_unless(
        in_float32,
        (
            (name, dtype)
            for name, kernel in CORRECT.items()
            for dtype in (
                (*DTYPES[LINEAR], "float16")
                if kernel.op == LINEAR
                else ("float32", "float64")
            )
        ),
    ),
)
def test_no_correct_kernel_is_diagnosed(name, dtype):
    assert cause(CORRECT[name], dtype) is None


@pytest.mark.parametrize(
    ("name", "dtype"),
    slow_unless(
        lambda name, dtype: dtype == "float32" and name in CHOSEN,
        (
            (name, dtype)
            for name, mutant in MUTANTS.items()
            for dtype in DTYPES.get(mutant.op, ("float32",))
            if mutant.cause
            and dtype not in mutant.harmless_in
            and (name, dtype) not in HIDDEN
        ),
    ),
)
def test_mutants_are_named(name, dtype):
    assert cause(MUTANTS[name], dtype) == MUTANTS[name].cause


@pytest.mark.parametrize(
    "name",
    slow_unless(
        lambda name: MUTANTS[name].op == LINEAR,
        (n for n, m in MUTANTS.items() if not m.cause and not m.by_chance),
    ),
)
def test_what_nothing_predicts_is_not_named(name):
    assert cause(MUTANTS[name]) is None


def test_most_mutants_are_named():
    named = [mutant.op for mutant in MUTANTS.values() if mutant.cause]
    assert named.count(LINEAR) >= 30
    assert len(named) - named.count(LINEAR) >= 28
