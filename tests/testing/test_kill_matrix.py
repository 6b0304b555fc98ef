"""The power of the referee: every mutant fails its law, no correct kernel fails any."""

import pytest

from linkern.testing import CHECKS, Plan, run
from linkern.testing.correct import CORRECT
from linkern.testing.mutants import MUTANTS
from linkern.testing.runner import CheckFinished

# Faults that are none in one dtype: bfloat16 kernels may use the output they returned.
EQUIVALENT = {
    ("returns_float64", "float64"),
    ("output_saved_in_bfloat16", "bfloat16"),
}
DTYPES = ("float32", "float64", "bfloat16")


def verdicts(function, dtype, **options):
    plan = Plan(
        "test",
        "linear_attention",
        dtypes=(dtype,),
        profile="quick",
        function=function,
        diagnose=False,
        **options,
    )
    return {e.result.name: e.result for e in run(plan) if isinstance(e, CheckFinished)}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name in CORRECT for dtype in DTYPES]
    + [("chunk_32_with_state", "float16"), ("quadratic", "float16")],
)
def test_correct_kernels_pass(name, dtype):
    wrong = {
        check: result.message
        for check, result in verdicts(CORRECT[name], dtype, seed=1).items()
        if result.verdict not in ("passed", "unsupported")
    }
    assert not wrong


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_fail_the_law_that_they_break(name, dtype):
    mutant = MUTANTS[name]
    found = verdicts(mutant.kernel, dtype, shrink=False, checks=(mutant.law,))
    assert (found[mutant.law].verdict == "failed") != ((name, dtype) in EQUIVALENT)


def test_there_are_enough_of_both():
    assert len(CORRECT) >= 8
    assert len(MUTANTS) >= 40
    assert all(mutant.precedent for mutant in MUTANTS.values())
    assert {mutant.law for mutant in MUTANTS.values()} <= set(CHECKS)
