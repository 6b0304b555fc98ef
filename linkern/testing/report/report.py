"""Report of a run: its plan and results, as text, page and JSON."""

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from linkern._version import __version__
from linkern.testing.diagnosis.diagnosis import Diagnosis
from linkern.testing.fingerprint import Fingerprint
from linkern.testing.report import terminal
from linkern.testing.report.grade import grade_of, json_values
from linkern.testing.runner.plan import Plan
from linkern.testing.runner.results import RULES, SEVERITY, CheckResult
from linkern.testing.runner.rounds import Round

__all__ = [
    "EXIT_CODES",
    "SCHEMA",
    "Report",
    "VerificationError",
    "exit_code_of",
    "json_text",
    "write_json",
]

# Version of the JSON report: names are added within one, and never changed.
SCHEMA = 3
# Columns of the report as text, where no terminal says how many there are.
TEXT_WIDTH = 80


class VerificationError(AssertionError):
    """A kernel that did not pass; the message is the report as text."""


# Exit code of a command by its verdict on one target.
EXIT_CODES = {
    "passed": 0,
    "xfailed": 0,
    "failed": 1,
    "error": 1,
    "refused": 1,
    "inconclusive": 3,
    "lost": 3,
}


def exit_code_of(verdicts: Iterable[str]) -> int:
    """Return the exit code for the verdicts on several targets: 1 goes before 3."""
    codes = {EXIT_CODES[verdict] for verdict in verdicts}
    return next((code for code in (1, 3) if code in codes), 0)


@dataclass(frozen=True)
class Report:
    """Verdict of a run, with everything needed to understand and repeat it.

    ``str(report)`` is the text that `linkern verify` prints; a notebook shows the page.

    Parameters
    ----------
    plan : Plan
        Target, operator, contract and options of the run.
    checks : tuple of CheckResult
        In the order in which they ran.
    diagnosis : Diagnosis or None
        The named cause of the failures, if one was found.
    fingerprint : Fingerprint or None
        Measured arithmetic of the target, if requested.
    complete : bool
        True if the run came to its end, or to the failure or the time at which it was
        to stop.
    environment : dict
        Machine, libraries and options of the run.
    notes : tuple of str
        The array library that was inferred, and dtypes that the target refuses.
    rounds : tuple of Round
        The numbers of examples and the seeds with which the checks were run; of a run
        with `seconds`, the last may be incomplete.
    time_over : bool
        True if the time ended the run.
    """

    plan: Plan
    checks: tuple[CheckResult, ...] = ()
    diagnosis: Diagnosis | None = None
    fingerprint: Fingerprint | None = None
    complete: bool = True
    environment: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    rounds: tuple[Round, ...] = ()
    time_over: bool = False

    @property
    def verdict(self) -> str:
        """The worst verdict of all checks that apply; inconclusive if none does.

        Inconclusive, too, if nothing failed, but what the plan requires was not judged;
        if it requires nothing, if the time was over before every check had run.
        """
        ran = [c.verdict for c in self.checks if c.applies]
        late = self.not_run and self.plan.seconds is not None
        if self.lacking or (late and not self.plan.require):
            ran.append("inconclusive")
        return max(ran, key=SEVERITY.index, default="inconclusive")

    @property
    def exit_code(self) -> int:
        """0 all passed, 1 a check failed or ended with an error, 3 inconclusive."""
        return EXIT_CODES[self.verdict]

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        """The checks that failed, or could not be run to their end."""
        return tuple(c for c in self.checks if c.verdict in ("failed", "error"))

    @property
    def not_run(self) -> tuple[str, ...]:
        """The checks that an interruption, `fail_fast` or the time left out."""
        ran = {check.name for check in self.checks}
        return tuple(c.name for c in self.plan.chosen() if c.name not in ran)

    @property
    def lacking(self) -> tuple[str, ...]:
        """Requirements of the plan that were not judged."""
        judged = [c for c in self.checks if c.applies and c.verdict != "inconclusive"]
        return self.plan.lacking({check.name for check in judged})

    @property
    def stopped(self) -> bool:
        """True if a failure ended the run before its last check (`fail_fast`)."""
        return self.plan.fail_fast and bool(self.failures and self.not_run)

    def raise_if_failed(self) -> None:
        """Raise unless the kernel passed.

        Raises
        ------
        VerificationError
            If a check failed, or if nothing could be concluded; its message is the
            report as text.
        """
        if self.exit_code:
            raise VerificationError(str(self))

    def __str__(self) -> str:
        """Return the text that `linkern verify` prints, without colours."""
        text = io.StringIO()
        console = Console(
            file=text,
            width=TEXT_WIDTH,
            color_system=None,
            force_terminal=False,
            force_jupyter=False,  # a notebook's console shows its text elsewhere
        )
        terminal.show(console, self)
        return text.getvalue().rstrip("\n")

    def _repr_html_(self) -> str:
        """Return the page, for notebooks, in a frame that keeps its style to itself."""
        from linkern.testing.report import html  # noqa: PLC0415 -- it loads Jinja2

        return html.frame(self)

    def to_html(self, path: Path | str) -> None:
        """Write the report as one HTML page; the file appears whole or not at all.

        Parameters
        ----------
        path : Path or str
            File to write.

        Raises
        ------
        OSError
            If the file cannot be written.
        """
        from linkern.testing.report import html  # noqa: PLC0415 -- it loads Jinja2

        html.write_html(self, Path(path))

    def to_json(self, path: Path | str) -> None:
        """Write the report as JSON; the file appears whole or not at all.

        Parameters
        ----------
        path : Path or str
            File to write.

        Raises
        ------
        OSError
            If the file cannot be written.
        """
        write_json([self], Path(path))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values; numbers that JSON lacks become strings."""
        checks = []
        for check in self.checks:
            entry = _fields(check)
            if check.counterexample is not None:
                shown = _fields(check.counterexample)
                for hidden in ("calls", "outputs", "interface"):
                    del shown[hidden]
                entry["counterexample"] = shown
            checks.append(entry)
        values = {
            "schema": SCHEMA,
            "linkern": __version__,
            "rules": RULES,
            "target": self.plan.target,
            "op": self.plan.op,
            "interpreted": self.plan.interpret,
            "ranks": list(self.plan.ranks),
            "contract": self.plan.contract.declared(),
            "environment": self.environment,
            "notes": list(self.notes),
            "complete": self.complete,
            "not_run": self.not_run,
            "required": list(self.plan.require),
            "lacking": list(self.lacking),
            "seconds": self.plan.seconds,
            "time_over": self.time_over,
            "rounds": [_fields(each) for each in self.rounds],
            "verdict": self.verdict,
            "grade": grade_of(self).to_dict(),
            "checks": checks,
            "diagnosis": self.diagnosis and self.diagnosis.to_dict(),
            "fingerprint": self.fingerprint and self.fingerprint.to_dict(),
        }
        finite: dict[str, Any] = json_values(values)
        return finite


def write_json(reports: Sequence[Report], path: Path) -> None:
    """Write one report as it is, several as a list under `reports`.

    The file appears whole or not at all.
    """
    write_whole(path, json_text(reports))


def write_whole(path: Path, text: str) -> None:
    """Write a file that appears whole or not at all."""
    draft = path.with_name(path.name + ".part")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def json_text(reports: Sequence[Report]) -> str:
    """Return one report as JSON, several as a list under `reports`."""
    values: dict[str, Any]
    if len(reports) == 1:
        values = reports[0].to_dict()
    else:
        listed = [report.to_dict() for report in reports]
        values = {
            "schema": SCHEMA,
            "linkern": __version__,
            "rules": RULES,
            "reports": listed,
        }
    return json.dumps(values, indent=2, allow_nan=False) + "\n"


def _fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, without copying the arrays inside them."""
    return {name: getattr(value, name) for name in value.__dataclass_fields__}
