"""The power of the referee: every mutant fails, no correct kernel does."""

import pytest

from linkern.testing import Plan, run
from linkern.testing.correct import CORRECT
from linkern.testing.mutants import FAULTY
from linkern.testing.runner import CheckFinished

# A fault that is none in one dtype.
EQUIVALENT = {("returns_float64", "float64")}
DTYPES = ("float32", "float64", "bfloat16")


def verdicts(function, dtype, **options):
    plan = Plan(
        "test",
        "linear_attention",
        dtypes=(dtype,),
        profile="quick",
        function=function,
        **options,
    )
    return {e.result.name: e.result for e in run(plan) if isinstance(e, CheckFinished)}


@pytest.mark.parametrize("dtype", [*DTYPES, "float16"])
@pytest.mark.parametrize("name", CORRECT)
def test_correct_kernels_pass(name, dtype):
    wrong = {
        check: result.message
        for check, result in verdicts(CORRECT[name], dtype, seed=1).items()
        if result.verdict not in ("passed", "unsupported")
    }
    assert not wrong


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FAULTY)
def test_mutants_fail(name, dtype):
    found = verdicts(FAULTY[name], dtype, shrink=False)
    killed = any(result.verdict == "failed" for result in found.values())
    assert killed != ((name, dtype) in EQUIVALENT)


def test_there_are_enough_of_both():
    assert len(CORRECT) >= 9
    assert len(FAULTY) >= 20
