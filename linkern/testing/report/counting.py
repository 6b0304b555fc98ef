"""Sentences that count the verdicts of a report, for the terminal and the page."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from linkern.testing.diagnosis.diagnosis import Diagnosis
from linkern.testing.errors import INAPPLICABLE
from linkern.testing.runner.plan import SMOKE_LEAVES_IT_OUT
from linkern.testing.runner.rounds import Round
from linkern.testing.spec.declarations import as_text

if TYPE_CHECKING:
    from linkern.testing.report.report import Report

__all__ = [
    "conclusion",
    "declared",
    "declaring",
    "in_words",
    "more",
    "not_judged",
    "of_rounds",
    "with_more_time",
]

# Of the time that the checks that ran let expect for all of them.
MARGIN = 1.3


def in_words(verdict: str) -> str:
    """Return a verdict as people write it."""
    return verdict.replace("_", " ")


def conclusion(report: "Report") -> str:
    """Return how many of the checks that apply have the verdict of the run.

    Examples
    --------
    >>> from linkern.testing.report.report import Report
    >>> from linkern.testing.runner.plan import Plan
    >>> from linkern.testing.runner.results import CheckResult
    >>> plan = Plan("kernels.py:kernel", "linear_attention")
    >>> verdicts = ("passed", "failed", "skipped")
    >>> conclusion(Report(plan, tuple(CheckResult("x", "a law", v) for v in verdicts)))
    'failed: 1 of 2 checks that apply'
    """
    seen = [check.verdict for check in report.checks if check.applies]
    if not seen:
        return "inconclusive: no check applies"
    lacking = f"; required: {', '.join(report.lacking)}" if report.lacking else ""
    if report.time_over and report.not_run and set(seen) <= {"passed"}:
        total = len(seen) + len(report.not_run)
        if report.verdict == "passed":
            within = f"{len(seen)} of {total} checks, within {report.plan.seconds:g} s"
            return f"passed what ran: {within}"
        within = f"of {total} checks run within {report.plan.seconds:g} s"
        return f"inconclusive: {len(seen)} {within}, and passed{lacking}"
    if lacking and set(seen) <= {"passed"}:
        checks = "check" if len(seen) == 1 else "checks"
        return f"inconclusive: {len(seen)} {checks} passed{lacking}"
    number = seen.count(report.verdict)
    share = f"all {len(seen)}" if number == len(seen) else f"{number} of {len(seen)}"
    checks = " checks that apply"
    if len(seen) == 1:
        share, checks = "the only check", " that applies"
    left_out = [c for c in report.checks if c.message == SMOKE_LEAVES_IT_OUT.reason]
    if left_out:
        checks = f" of smoke, of {len(seen) + len(left_out)} checks that apply"
    if report.stopped or not report.complete or (report.time_over and report.not_run):
        checks = f" run, {len(report.not_run)} not run"
    others = {v: seen.count(v) for v in seen if v not in ("passed", report.verdict)}
    besides = "".join(f", {count} {verdict}" for verdict, count in others.items())
    return f"{report.verdict}: {share}{checks}{besides}"


def of_rounds(rounds: Sequence[Round]) -> str:
    """Return how many laws were judged with the examples of each profile.

    Examples
    --------
    >>> of_rounds([Round("smoke", 7, 40, 40), Round("quick", 8, 12, 40)])
    'smoke (seed 7), 12 of 40 checks of quick (seed 8)'
    """
    return ", ".join(
        f"{'' if one.complete else f'{one.judged} of {one.laws} checks of '}"
        f"{one.profile} (seed {one.seed})"
        for one in rounds
        if one.judged
    )


def with_more_time(report: "Report") -> str:
    """Return the options with which the checks run that the time of a run left out.

    Examples
    --------
    >>> from linkern.testing.report.report import Report
    >>> from linkern.testing.runner.plan import Plan
    >>> from linkern.testing.runner.results import CheckResult
    >>> checks = ("causality", "prefix", "ranges")
    >>> plan = Plan("a.py:f", "linear_attention", checks=checks, seconds=20.0)
    >>> report = Report(plan, (CheckResult("causality", "a law", "passed"),))
    >>> with_more_time(report).partition(",")[0]
    '`--seconds 80`'
    """
    ran = sum(check.applies for check in report.checks)
    longer = "a longer `--seconds`"
    if ran and report.plan.seconds is not None:
        # The checks that come last take longest.
        seconds = MARGIN * report.plan.seconds * (ran + len(report.not_run)) / ran
        longer = f"`--seconds {10 * math.ceil(seconds / 10)}`"
        longer += ", judged by those that ran"
    dtypes = report.plan.dtypes
    narrower = f", or `--dtype {dtypes[0]}`" if len(dtypes) > 1 else ""
    return f"{longer}{narrower}; or `--require NAME` for the checks that are enough"


def more(report: "Report") -> str:
    """Return what would have skipped laws judged, and how many; empty for nothing.

    Examples
    --------
    >>> from linkern.testing.report.report import Report
    >>> from linkern.testing.runner.plan import Plan
    >>> from linkern.testing.runner.results import CheckResult
    >>> plan = Plan("kernels.py:kernel", "linear_attention")
    >>> law = CheckResult("x", "a law", "skipped", remedies=("return a state",))
    >>> more(Report(plan, (law, law)))
    'return a state, and 2 more laws are judged'
    """
    laws: dict[tuple[str, ...], int] = {}
    for check in report.checks:
        if check.verdict == "skipped" and check.remedies:
            laws[check.remedies] = laws.get(check.remedies, 0) + 1
    largest_first = sorted(laws.items(), key=lambda item: -item[1])
    sentences: list[str] = []
    for remedies, number in largest_first:
        judged = " law is judged" if number == 1 else " laws are judged"
        first = judged if not sentences else ""
        sentences.append(f"{' and '.join(remedies)}, and {number} more{first}")
    return "; ".join(sentences)


def not_judged(report: "Report") -> str:
    """Return how many laws were not judged, by kind; empty for none."""
    seen = [check.verdict for check in report.checks if not check.applies]
    return ", ".join(
        f"{seen.count(kind)} {in_words(kind)}" for kind in INAPPLICABLE if kind in seen
    )


def declaring(diagnosis: Diagnosis) -> str:
    """Return the options that declare what a target was found to compute.

    Examples
    --------
    >>> declaring(Diagnosis("layout_swapped", "...", 0.5, ("layout=bthd",)))
    '--declare layout=bthd'
    """
    return " ".join(f"--declare {pair}" for pair in diagnosis.declaration)


def declared(report: "Report") -> str:
    """Return what the contract of a report relaxes."""
    relaxed = report.plan.contract.declared().items()
    text = ", ".join(f"{key}={as_text(value)}" for key, value in relaxed)
    return f"declared: {text}" if text else "nothing declared"
