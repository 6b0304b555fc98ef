"""A report for GitHub Actions: annotations of a pull request, summary of a job."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from linkern.testing.target.sources import file_of, line_of

if TYPE_CHECKING:
    from linkern.testing.report.report import Report
    from linkern.testing.runner.results import CheckResult

__all__ = ["annotations", "summary"]

# The last words of a message about an exception: the line of the file that raised it.
_RAISED = re.compile(r"\((?P<name>[^():\s]+\.py):(?P<line>\d+)\)")


def annotations(report: "Report") -> Iterator[str]:
    """Yield a workflow command for each failure, on the line of the target.

    GitHub shows them beside the line in the changed files of a pull request. An
    exception is shown on the line that raised it, if that is in the target's file.
    """
    path = file_of(report.plan.target)
    for check in report.failures:
        properties = {"title": f"linkern: {check.name}"}
        if path is not None:
            properties = {"file": _relative(path), **properties}
            line = _line(check, path) or line_of(report.plan.target)
            if line is not None:
                properties["line"] = str(line)
        fields = ",".join(f"{key}={_escaped(x)}" for key, x in properties.items())
        yield f"::error {fields}::{_data(_message(report, check))}"


def summary(report: "Report") -> str:
    """Return the report as Markdown, for the summary page of a job."""
    symbol = "✅" if report.exit_code == 0 else "❌"
    return f"### {symbol} linkern\n\n```text\n{report}\n```\n"


def _message(report: "Report", check: "CheckResult") -> str:
    lines = [f"{check.message}. Law: {check.statement}."]
    if check.counterexample is not None:
        lines.append(f"Smallest input: {check.counterexample.input}")
    if report.diagnosis is not None:
        lines.append(f"Cause: {report.diagnosis.sentence}")
    return "\n".join([*lines, f"Again: {check.again}"])


def _line(check: "CheckResult", path: Path) -> int | None:
    raised = _RAISED.search(check.message)
    if raised is None or raised["name"] != path.name:
        return None
    return int(raised["line"])


def _relative(path: Path) -> str:
    """Return a path as seen from the working directory, which is the repository."""
    absolute, here = path.resolve(), Path.cwd()
    inside = absolute.is_relative_to(here)
    return str(absolute.relative_to(here) if inside else absolute)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escaped(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
