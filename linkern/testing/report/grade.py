"""Grade of a run: verdict, score and cause in one small schema, for programs.

The schema is `grade.schema.json` beside this module.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from linkern._version import __version__
from linkern.testing.checks import CHECKS
from linkern.testing.report.counting import conclusion
from linkern.testing.runner.results import RULES, CheckResult
from linkern.testing.runner.rounds import Round

if TYPE_CHECKING:
    from linkern.testing.report.report import Report

__all__ = [
    "GRADE_SCHEMA",
    "Cause",
    "Example",
    "Grade",
    "grade_of",
    "json_values",
]

# Version of the schema: names are added within one, and never changed.
GRADE_SCHEMA = 1


@dataclass(frozen=True)
class Cause:
    """The deviation that a target computes instead of its operator.

    Parameters
    ----------
    name, sentence : str
        The deviation, and the same for people; ``unexplained`` if nothing shows.
    declaration : tuple of str
        ``KEY=VALUE`` of the contract under which the target is right; empty if none.
    stage, where, by_what : str
        The result in which it shows first, the entries that are wrong, and what they
        are as a multiple of the exact ones; empty where that was not measured.
    alternatives : tuple of str
        Places that the measurements do not tell from `where`.
    hint : str
        The usual line of code at fault.
    not_measured : tuple of str
        Parts of the calls that could not be measured, and the reasons.
    places : tuple of tuple of mapping
        `where` for programs: statements that hold together, or two such lists.
    factor : mapping or None
        `by_what` for programs: constant and exponents, words, or bits.
    """

    name: str
    sentence: str
    declaration: tuple[str, ...] = ()
    stage: str = ""
    where: str = ""
    by_what: str = ""
    alternatives: tuple[str, ...] = ()
    hint: str = ""
    not_measured: tuple[str, ...] = ()
    places: tuple[tuple[Mapping[str, Any], ...], ...] = ()
    factor: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Example:
    """The smallest input found that breaks the first broken law.

    Parameters
    ----------
    law, statement, message : str
        The law, in one line too, and the observation.
    input : str
        Sizes, dtype and kind of the input.
    entry : tuple of int, optional
        The first wrong entry, in ``(B, H, T, V)``.
    got, expected, bound, ratio : float, optional
        The entry, what it is compared with, the error bound of a correct kernel, and
        the error as a multiple of it.
    again : str
        The command that judges the law again.
    """

    law: str
    statement: str
    message: str
    input: str = ""
    entry: tuple[int, ...] | None = None
    got: float | None = None
    expected: float | None = None
    bound: float | None = None
    ratio: float | None = None
    again: str = ""


@dataclass(frozen=True)
class Grade:
    """Verdict on a candidate, for programs that write kernels.

    Parameters
    ----------
    target, op : str
        The candidate, and the operator that it claims to be.
    verdict : {"passed", "failed", "refused", "inconclusive"}
        "passed": every law that applies was judged and kept; "failed": one is broken;
        "refused": the candidate cannot be loaded or called; "inconclusive": nothing
        failed, but the time was over before every law was judged, or nothing could be
        proved.
    score : float
        From 0 to 1: the share of laws that are kept, times the share that is kept of
        those that compare with exact results, which an output of zeros breaks. Laws
        that apply and were not judged count as not kept.
    laws, judged, kept : int
        Laws that apply, as far as they were asked; how many of them were judged; how
        many of these are kept.
    exact, exact_kept : int
        The same of the laws that compare with exact results: those that apply, and
        those that are kept.
    examples : int
        Inputs tried.
    worst_error : dict of str to float or None
        Largest error as a multiple of its proved bound, of the ``output``, the
        ``state`` and the ``gradient``; None where nothing was compared.
    message : str
        The verdict in one sentence, or the reason why the candidate is refused.
    broken : tuple of str
        The names of the broken laws.
    cause : Cause or None
        What the candidate computes instead, where that is known.
    counterexample : Example or None
        The smallest input found that breaks the first of them.
    seed : int
        Seed of the run: the same rounds of the same seed have the same verdict.
    rounds : tuple of Round
        Which examples were judged, and the seeds that judge them again.
    seconds : float
        Wall time of the run.
    """

    target: str
    op: str
    verdict: str
    score: float = 0.0
    laws: int = 0
    judged: int = 0
    kept: int = 0
    exact: int = 0
    exact_kept: int = 0
    examples: int = 0
    worst_error: Mapping[str, float | None] = field(default_factory=dict)
    message: str = ""
    broken: tuple[str, ...] = ()
    cause: Cause | None = None
    counterexample: Example | None = None
    seed: int = 0
    rounds: tuple[Round, ...] = ()
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the grade as JSON values, as `grade.schema.json` has them.

        Numbers that JSON lacks become strings.
        """
        values = {"schema": GRADE_SCHEMA, "linkern": __version__, "rules": RULES}
        finite: dict[str, Any] = json_values(values | asdict(self))
        return finite


def grade_of(report: "Report", seconds: float = 0.0) -> Grade:
    """Return the grade of a run.

    Parameters
    ----------
    report : Report
        The report of the run, complete or not.
    seconds : float
        Wall time of the run.

    Examples
    --------
    >>> from linkern.testing.report.report import Report
    >>> from linkern.testing.runner.plan import Plan
    >>> checks = ("value_on_reals", "causality")
    >>> plan = Plan("kernels.py:zeros", "linear_attention", checks=checks)
    >>> wrong = CheckResult("value_on_reals", "a law", "failed")
    >>> kept = CheckResult("causality", "a law", "passed")
    >>> grade = grade_of(Report(plan, (wrong, kept)))
    >>> grade.verdict, grade.score, grade.kept, grade.judged
    ('failed', 0.0, 1, 2)
    """
    checks = [check for check in report.checks if check.applies]
    judged = [check for check in checks if check.verdict != "inconclusive"]
    kept = [check.name for check in judged if check.verdict in ("passed", "xfailed")]
    laws = [*(check.name for check in judged), *report.not_run]
    relations = {name for name, check in CHECKS.items() if check.relation}
    exact = [name for name in laws if name not in relations]
    exact_kept = [name for name in kept if name not in relations]
    return Grade(
        report.plan.target,
        report.plan.op,
        _VERDICTS[report.verdict],
        score=_share(kept, laws) * _share(exact_kept, exact) if kept else 0.0,
        laws=len(laws),
        judged=len(judged),
        kept=len(kept),
        exact=len(exact),
        exact_kept=len(exact_kept),
        examples=sum(check.examples for check in checks),
        worst_error=_worst_errors(report.checks),
        message=conclusion(report),
        broken=tuple(check.name for check in report.failures),
        cause=_cause(report),
        counterexample=_first_example(report),
        seed=report.plan.seed,
        rounds=report.rounds,
        seconds=round(seconds, 3),
    )


# An error of the referee says nothing of the target.
_VERDICTS = {
    "passed": "passed",
    "xfailed": "passed",
    "failed": "failed",
    "error": "inconclusive",
    "inconclusive": "inconclusive",
}


def _share(part: Sequence[str], whole: Sequence[str]) -> float:
    return len(part) / len(whole) if whole else 1.0


def _worst_errors(checks: Sequence[CheckResult]) -> dict[str, float | None]:
    """Return the largest error of each kind of result, in the laws that bound it."""
    worst: dict[str, float | None] = dict.fromkeys(("output", "state", "gradient"))
    for check in checks:
        if check.worst_ratio is None:
            continue
        law = CHECKS[check.name]
        if not law.relation:
            worst[law.kind] = max(worst[law.kind] or 0.0, check.worst_ratio)
    return worst


def _cause(report: "Report") -> Cause | None:
    named = report.diagnosis
    if named is None:
        return None
    return Cause(**{x.name: getattr(named, x.name) for x in fields(Cause)})


def _first_example(report: "Report") -> Example | None:
    check = next(iter(report.failures), None)
    if check is None:
        return None
    law = Example(check.name, check.statement, check.message, again=check.again)
    example = check.counterexample
    if example is None:
        return law
    return replace(
        law,
        input=example.input,
        entry=None if example.index is None else tuple(example.index),
        got=example.got,
        expected=example.expected,
        bound=example.bound,
        ratio=example.ratio,
    )


def json_values(value: Any) -> Any:
    """Return a value as JSON has it; infinities and NaN become strings."""
    if isinstance(value, dict):
        return {key: json_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple | frozenset):
        return [json_values(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
