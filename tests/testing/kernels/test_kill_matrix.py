"""The power of the referee: every mutant fails its law, no correct kernel fails any."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from linkern.testing import CHECKS, Plan, run
from linkern.testing.kernels.correct import CORRECT
from linkern.testing.kernels.gated import GATED_MUTANTS
from linkern.testing.kernels.mutants import MUTANTS
from linkern.testing.runner.loop import CheckFinished
from tests.testing.panel import panels, verdict_on_all

OP = "linear_attention"
# Faults that are none in one dtype: bfloat16 kernels may use the output they returned.
EQUIVALENT = {
    ("returns_float64", "float64"),
    ("output_saved_in_bfloat16", "bfloat16"),
}
DTYPES = ("float32", "float64", "bfloat16")
# These compare calls bit by bit, and so say the same in every dtype.
OF_ANY_DTYPE = {
    "thread_safety",
    "determinism",
    "freshness",
    "leaves_no_trace",
    "inputs_untouched",
    "heads_independent",
}


def verdicts(function, dtype, **options):
    plan = Plan(
        "test",
        OP,
        dtypes=(dtype,),
        profile="quick",
        function=function,
        diagnose=False,
        **options,
    )
    return {e.result.name: e.result for e in run(plan) if isinstance(e, CheckFinished)}


# Kernels of one interface are judged together, and two of them in one dtype more.
IN_FLOAT16 = ("chunk_32_with_state", "quadratic")
PANELS = [
    *((names, dtype) for names in panels(CORRECT, op=OP) for dtype in DTYPES),
    *(((name,), "float16") for name in IN_FLOAT16),
]


@pytest.mark.parametrize(
    ("check", "names", "dtype"),
    [
        pytest.param(check, names, dtype, id=f"{check}-{names[0]}-{dtype}")
        for names, dtype in PANELS
        for check in CHECKS
        if dtype == "float32" or check not in OF_ANY_DTYPE
    ],
)
def test_correct_kernels_pass(check, names, dtype, monkeypatch):
    result = verdict_on_all(
        monkeypatch,
        {name: CORRECT[name] for name in names},
        check,
        op=OP,
        dtypes=(dtype,),
        profile="quick",
        seed=1,
    )
    assert result.verdict in ("passed", "unsupported"), result.message


def test_every_correct_kernel_is_judged():
    judged = {name for names, dtype in PANELS if dtype == "float32" for name in names}
    assert judged == set(CORRECT)


@pytest.mark.parametrize("name", ["not_normalised", "state_ignored"])
def test_one_that_is_wrong_among_them_is_named(name, monkeypatch):
    law, right = MUTANTS[name].law, dict(CORRECT)
    of = [n for n in panels(right | {name: MUTANTS[name].kernel}, op=OP) if name in n]
    kernels = {n: right.get(n, MUTANTS[name].kernel) for n in of[0]}
    result = verdict_on_all(
        monkeypatch, kernels, law, op=OP, dtypes=("float32",), profile="quick"
    )
    assert result.verdict == "failed"
    assert result.message.startswith(f"{name}: ")


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


@pytest.fixture
def matrix():
    path = Path(__file__).parents[3] / "tools" / "kill_matrix.py"
    spec = spec_from_file_location("kill_matrix", path)
    tool = module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def catching_all_but(matrix, *survivors):
    """In place of running the mutants: all are caught as the page says, but some."""

    def caught(name, checks, seed=0):
        return [] if name in survivors else [*checks]

    def run(*asked):
        return tuple({n: caught(n, checks) for n, checks in of.items()} for of in asked)

    matrix._run, matrix.caught_by, matrix.gated_caught_by = run, caught, caught
    return matrix


def test_the_page_follows_from_its_rows(matrix, capsys):
    page = matrix.PAGE.read_text(encoding="utf-8")
    assert catching_all_but(matrix).put_to_the_test(page) == []
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("| `heads_mixed` |", "| `heads_swapped` |"),
        (f"| {len(MUTANTS)} of {len(MUTANTS)} |", "| some |"),
        ("**ranges** alone", "**range** alone"),
        ("| causality | ", "| casualty | "),
        ("fla #594", "fla #595"),
    ],
)
def test_a_page_about_something_else_is_refused(matrix, old, new):
    page = matrix.PAGE.read_text(encoding="utf-8")
    assert old in page
    (wrong, *_) = catching_all_but(matrix).put_to_the_test(page.replace(old, new))
    assert "about other mutants or checks" in wrong


@pytest.mark.parametrize("name", ["heads_mixed", next(iter(GATED_MUTANTS))])
def test_a_mutant_that_survives_is_named(matrix, name, capsys):
    page = matrix.PAGE.read_text(encoding="utf-8")
    found = catching_all_but(matrix, name).put_to_the_test(page)
    assert found == [f"survived: {name}"]
    assert f"{name}: here not caught by" in capsys.readouterr().err


def test_a_mutant_that_one_seed_misses_has_not_survived(matrix, capsys):
    page = matrix.PAGE.read_text(encoding="utf-8")
    catching_all_but(matrix, "heads_mixed")
    matrix.caught_by = lambda name, checks, seed: [*checks] if seed == 2 else []
    assert matrix.put_to_the_test(page) == []
    assert "heads_mixed: here not caught by" in capsys.readouterr().err
