"""The text on the terminal: what comes first, how much there is, what it counts."""

import io
import math
from dataclasses import replace

import pytest
from rich.console import Console

from linkern.testing.diagnosis.diagnosis import UNEXPLAINED, Diagnosis, Picture
from linkern.testing.report import terminal
from linkern.testing.report.counting import conclusion, more, not_judged
from linkern.testing.report.report import Report
from linkern.testing.report.terminal import MOST_ROWS
from linkern.testing.runner.plan import Plan
from linkern.testing.runner.results import CheckResult, Counterexample

PLAN = Plan(
    "kernels.py:kernel",
    "linear_attention",
    framework="numpy",
    dtypes=("float32", "float64"),
)
EXAMPLE = Counterexample(
    "B=1 H=1 T=2 K=1 V=1 float32, normal features",
    (),
    [0, 0, 1, 0],
    5.5,
    6.0,
    4e-6,
    9.0,
    axes="(B, H, T, V)",
)
CAUSE = Diagnosis("eps", "agrees with `eps=1e-6` added to the denominator", 0.4)


def law(name, verdict, **fields):
    if verdict == "failed":
        fields.setdefault("counterexample", EXAMPLE)
        fields.setdefault("message", f"{name} is broken " + "in many words " * 6)
    return CheckResult(name, f"the law of {name}", verdict, **fields)


def shown(report, width=80, **options):
    text = io.StringIO()
    console = Console(file=text, width=width, color_system=None, force_terminal=False)
    terminal.show(console, report, **options)
    return text.getvalue()


FAILED = Report(
    PLAN,
    (
        law("causality", "passed", worst_ratio=0.5, examples=7),
        law("prefix", "passed", message="right, but not exact"),
        law("value_on_reals", "error", message="the referee failed"),
        *(law(f"law_{n}", "failed", worst_ratio=math.inf) for n in range(9)),
        law("known", "xfailed", message="it is a clock", counterexample=EXAMPLE),
        law("state_split", "skipped", message="no state", remedies=("return one",)),
        law("state_merge", "not_applicable", message="no sum"),
        law("strides", "covered", message="wrong anyway"),
    ),
    CAUSE,
)
PASSED = Report(
    PLAN,
    (
        law("causality", "passed", dtypes=("float32", "float64"), examples=7),
        law("differences", "passed", dtypes=("float64",), message="right, not exact"),
        *(
            law(f"state_{n}", "skipped", message="no state", remedies=("return one",))
            for n in range(5)
        ),
        law("bad_input", "skipped", remedies=("declare validates=true",)),
        law("scaling", "not_applicable", message="no powers"),
    ),
)


def test_verdict_cause_and_first_failure_come_first():
    lines = shown(FAILED).splitlines()
    assert lines[0] == (
        "failed: kernels.py:kernel as linear_attention (numpy: float32, float64)"
    )
    assert lines[1].startswith("cause: agrees with `eps=1e-6`")
    assert lines[2] == ""
    assert lines[3].startswith("failed law_0: law_0 is broken")


def test_one_failure_is_explained_and_the_others_are_named():
    text = shown(FAILED)
    assert text.count("  law  ") == text.count("  again  ") == 1
    rows = [line for line in text.splitlines() if line.startswith("  law_")]
    assert len(rows) == MOST_ROWS
    assert "inf  law_1 is broken" in rows[0]
    # Of nine failures, an error and an expected failure, one is explained.
    assert f"and {11 - 1 - MOST_ROWS} more: " in text
    assert "law_8" in text
    assert "known" in text


def test_verbose_explains_everything():
    text = shown(FAILED, verbose=True)
    assert text.count("  law  ") == 11
    for check in FAILED.checks:
        assert f"│ {check.name} " in text
    for words in ("no state (return one)", "no sum", "wrong anyway", "not exact"):
        assert words in text
    assert "more: " not in text


def test_the_last_line_counts_what_applies():
    last = shown(FAILED).splitlines()[-1]
    assert last == "failed: 9 of 13 checks that apply, 1 error, 1 xfailed"
    tried, last = shown(PASSED).splitlines()[-2:]
    assert tried == "tried: 7 examples; nothing declared; seed 0"
    assert last == "passed: all 2 checks that apply"


@pytest.mark.parametrize(
    ("verdicts", "sentence"),
    [
        (["passed"], "passed: the only check that applies"),
        (["passed", "xfailed"], "xfailed: 1 of 2 checks that apply"),
        (["skipped", "covered"], "inconclusive: no check applies"),
        ([], "inconclusive: no check applies"),
        (["failed", "failed", "skipped"], "failed: all 2 checks that apply"),
    ],
)
def test_counts(verdicts, sentence):
    laws = tuple(law(str(n), verdict) for n, verdict in enumerate(verdicts))
    assert conclusion(Report(PLAN, laws)) == sentence


def test_a_pass_says_what_would_have_more_judged():
    assert more(PASSED) == (
        "return one, and 5 more laws are judged; declare validates=true, and 1 more"
    )
    assert not_judged(PASSED) == "1 not applicable, 6 skipped"
    text = " ".join(shown(PASSED).split())
    assert more(PASSED) in text
    assert "in float64 only: differences" in text
    assert "differences: right, not exact" in text
    assert "return one" not in shown(FAILED)


@pytest.mark.parametrize("report", [FAILED, PASSED], ids=["failed", "passed"])
@pytest.mark.parametrize("verbose", [False, True])
def test_it_fits_into_80_columns_save_for_commands(report, verbose):
    for line in shown(report, verbose=verbose).splitlines():
        assert len(line) <= 80 or line.startswith("  again "), line
        assert line == line.rstrip()


def test_a_command_is_one_line_however_narrow_the_terminal():
    (again,) = [x for x in shown(FAILED, 40).splitlines() if x.startswith("  again")]
    assert again.endswith("--check law_0")


def test_what_a_target_says_is_no_markup():
    hostile = replace(FAILED.checks[3], message="[red]no[/red] [/]")
    assert "[red]no[/red] [/]" in shown(replace(FAILED, checks=(hostile,)))


def test_the_text_of_a_report_is_that_of_the_terminal():
    for report in (FAILED, PASSED):
        assert str(report) == shown(report).rstrip("\n")


def test_an_interrupted_run_says_so_first_and_last():
    lines = shown(replace(FAILED, complete=False)).splitlines()
    assert lines[0].startswith("interrupted, so far failed: ")
    assert lines[-1].startswith("interrupted, so far failed: 9 of 13 run, ")
    stopped = replace(FAILED, plan=replace(PLAN, fail_fast=True))
    last = shown(stopped).splitlines()[-1]
    assert last.startswith("failed: 9 of 13 run, ")
    assert last.endswith(" not run, 1 error, 1 xfailed (--fail-fast)")


def test_where_nothing_shows_the_reasons_are_said():
    silent = Diagnosis(UNEXPLAINED, "nothing tells", not_measured=("spans: no state",))
    text = shown(replace(FAILED, diagnosis=silent))
    assert "cause: nothing tells\nnot measured: spans: no state\n" in text
    assert "cause: " not in shown(replace(FAILED, diagnosis=None))


def test_a_cause_has_its_usual_line_and_its_map():
    cells = (".   ", "..  ", "00. ", "00..")
    starts = (0, 8, 16, 24)
    axes = ("row", "source")
    picture = Picture("output", axes, starts, starts, cells, (), (), 16)
    located = replace(
        CAUSE,
        alternatives=("rows from 16 on",),
        hint="the carried state",
        picture=picture,
        not_measured=("spans: it returns no state",),
    )
    lines = shown(replace(FAILED, diagnosis=located)).splitlines()
    assert lines[2:8] == [
        "or as well: rows from 16 on",
        "usual line: the carried state",
        "not measured: spans: it returns no state",
        "",
        "  0 ·  │",
        "  8 · ·│",
    ]
    assert lines[8].strip() == "───┼───"
    # A map that is wrong all over shows nothing that the sentence does not.
    everywhere = replace(picture, cells=("0   ", "00  ", "000 ", "0000"))
    text = shown(replace(FAILED, diagnosis=replace(located, picture=everywhere)))
    assert "sources across" not in text


def test_a_cause_that_can_be_declared_says_what_to_type():
    declared = replace(CAUSE, declaration=("eps=1e-6", "eps_mode=clamp"))
    lines = shown(replace(FAILED, diagnosis=declared)).splitlines()
    assert lines[2] == "if that is meant: --declare eps=1e-6 --declare eps_mode=clamp"
    assert "if that is meant" not in shown(FAILED)
