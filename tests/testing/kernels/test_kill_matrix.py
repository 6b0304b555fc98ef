"""The power of the referee: every mutant fails its check, no correct kernel any."""

import pytest

from linkern.testing import CHECKS, Plan, run
from linkern.testing.checks import OF_LAUNCHES, lengths
from linkern.testing.errors import INAPPLICABLE
from linkern.testing.kernels.correct import CORRECT
from linkern.testing.kernels.mutants import MUTANTS
from linkern.testing.runner.loop import CheckFinished
from linkern.testing.spec.contract import Contract
from tests.marks import in_turn
from tests.testing.panel import panels, verdict_on_all

pytestmark = pytest.mark.usefixtures("exact_answers")

LINEAR = "linear_attention"
LAWS = [name for name in CHECKS if name not in OF_LAUNCHES]
DTYPES = {LINEAR: ("float32", "float64", "bfloat16")}
# Exact answers of other operators take longer.
OTHERS = ("float32",)
# These compare calls bit by bit, and so say the same in every dtype.
OF_ANY_DTYPE = {
    "thread_safety",
    "determinism",
    "freshness",
    "leaves_no_trace",
    "inputs_untouched",
    "heads_independent",
}
# Correct kernels that are judged in float16 as well.
IN_FLOAT16 = ("chunk_32_with_state", "quadratic")


def declared(kernel):
    return {"op": kernel.op, "contract": Contract(**kernel.contract)}


def verdict(kernel, check, dtype="float32", profile="quick"):
    plan = Plan(
        "test",
        **declared(kernel),
        dtypes=(dtype,),
        profile=profile,
        function=kernel.kernel,
        diagnose=False,
        shrink=False,
        checks=(check,),
    )
    (result,) = (e.result for e in run(plan) if isinstance(e, CheckFinished))
    return result


def checks_of(op, dtype):
    """Return the checks that correct kernels of an operator must pass."""
    if op != LINEAR:
        of_op = (mutant for mutant in MUTANTS.values() if mutant.op == op)
        named = {mutant.checks[0] for mutant in of_op}
        return sorted(named | {"value_on_reals", "shard_law"})
    return [c for c in LAWS if dtype == "float32" or c not in OF_ANY_DTYPE]


def together():
    """Yield names of kernels of one operator, contract and interface, and a dtype."""
    for kernel in CORRECT.values():
        own = declared(kernel)
        alike = {n: k.kernel for n, k in CORRECT.items() if declared(k) == own}
        for names in panels(alike, **own):
            if kernel.name == names[0]:
                for dtype in DTYPES.get(kernel.op, OTHERS):
                    yield names, dtype


def by_default(check, first, dtype):
    """Return True for what runs without `-m slow`: one kernel, and one law for all."""
    chosen = first == "chunk_32_with_state" or check == "value_on_reals"
    return dtype == "float32" and chosen


# Kernels of one interface are judged together. By the first of them and a dtype:
PANELS = {(names[0], dtype): names for names, dtype in together()}
PANELS |= {(name, "float16"): (name,) for name in IN_FLOAT16}


@pytest.mark.parametrize(
    ("check", "name", "dtype"),
    in_turn(
        by_default,
        (
            (check, name, dtype)
            for name, dtype in PANELS
            for check in checks_of(CORRECT[name].op, dtype)
        ),
        step=2,
    ),
)
def test_correct_kernels_pass(check, name, dtype, monkeypatch):
    first, names = CORRECT[name], PANELS[name, dtype]
    if "quadratic" in names:  # its scores of 16,387 tokens take gigabytes
        monkeypatch.setattr(lengths, "RUNGS", lengths.RUNGS[:2])
    result = verdict_on_all(
        monkeypatch,
        {name: CORRECT[name].kernel for name in names},
        check,
        **declared(first),
        dtypes=(dtype,),
        profile="quick",
        shrink=first.op == LINEAR,
        seed=1,
    )
    silent = {"passed", *INAPPLICABLE}
    if first.op != LINEAR:  # of strong decays, no bound may be provable
        silent.add("inconclusive")
    assert result.verdict in silent, result.message


@pytest.mark.parametrize("op", sorted({kernel.op for kernel in CORRECT.values()}))
def test_every_correct_kernel_is_judged_once_in_each_dtype(op):
    for dtype in DTYPES.get(op, OTHERS):
        judged = [
            name for (_, one), names in PANELS.items() if one == dtype for name in names
        ]
        assert sorted(n for n in judged if CORRECT[n].op == op) == sorted(
            name for name, kernel in CORRECT.items() if kernel.op == op
        )


@pytest.mark.parametrize("name", ["not_normalised", "state_ignored"])
def test_a_mutant_among_correct_kernels_is_named(name, monkeypatch):
    kernels = {n: k.kernel for n, k in CORRECT.items() if k.op == LINEAR}
    kernels[name] = MUTANTS[name].kernel
    (names,) = (n for n in panels(kernels, op=LINEAR) if name in n)
    result = verdict_on_all(
        monkeypatch,
        {n: kernels[n] for n in names},
        MUTANTS[name].checks[0],
        op=LINEAR,
        dtypes=("float32",),
        profile="quick",
    )
    assert result.verdict == "failed"
    assert result.message.startswith(f"{name}: ")


def first_wrong(name, dtype):
    """Return True for the first dtype in which a mutant is wrong."""
    mutant = MUTANTS[name]
    dtypes = DTYPES.get(mutant.op, OTHERS)
    wrong = (one for one in dtypes if one not in mutant.harmless_in)
    return dtype == next(wrong, dtypes[0])


@pytest.mark.parametrize(
    ("name", "dtype"),
    in_turn(
        first_wrong,
        (
            (name, dtype)
            for name, mutant in MUTANTS.items()
            for dtype in DTYPES.get(mutant.op, OTHERS)
        ),
    ),
)
def test_mutants_fail_their_check(name, dtype):
    mutant = MUTANTS[name]
    # What was written to pass a test passes a few examples.
    profile = "default" if mutant.hack else "quick"
    result = verdict(mutant, mutant.checks[0], dtype, profile)
    assert (result.verdict == "failed") != (dtype in mutant.harmless_in), result


@pytest.mark.parametrize(
    "name", [n for n, m in MUTANTS.items() if "float32" in m.harmless_in]
)
def test_what_float32_hides_fails_in_float64(name):
    mutant = MUTANTS[name]
    assert verdict(mutant, mutant.checks[0], "float64").verdict == "failed"


@pytest.mark.parametrize(
    "name", ["memory_saturates", "initial_state_decays_too_little"]
)
def test_shards_that_do_not_compose_fail(name):
    result = verdict(MUTANTS[name], "shard_law")
    assert result.verdict == "failed"
    assert "composed" in result.message


def test_rows_after_the_last_packed_sequence_must_be_written():
    mutant = MUTANTS["packed_slack_not_written"]
    assert "are not finite" in verdict(mutant, "packed_equals_separate").message


def test_there_are_enough_of_both():
    linear = [mutant for mutant in MUTANTS.values() if mutant.op == LINEAR]
    others = [mutant for mutant in MUTANTS.values() if mutant.op != LINEAR]
    assert len(linear) >= 40
    assert len(others) >= 28
    assert len({mutant.op for mutant in others}) >= 9
    assert sum(kernel.op == LINEAR for kernel in CORRECT.values()) >= 8
    assert {mutant.op for mutant in others} <= {k.op for k in CORRECT.values()}


def test_every_mutant_has_a_precedent_and_checks_that_exist():
    assert all(mutant.precedent for mutant in MUTANTS.values())
    assert {check for mutant in MUTANTS.values() for check in mutant.checks} <= {
        *CHECKS
    }
    # Those of other operators name a defect by its number, published code that has it,
    # or a published audit.
    others = (mutant for mutant in MUTANTS.values() if mutant.op != LINEAR)
    audits = ("#", "fla: ", "KernelBench", "METR", "deep-reinforce")
    assert all(any(x in mutant.precedent for x in audits) for mutant in others)
