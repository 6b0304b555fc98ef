"""Report files of a run of pytest, from one process or from those of pytest-xdist."""

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from linkern.testing.api import report_of
from linkern.testing.diagnosis.diagnosis import Diagnosis
from linkern.testing.report import bundle
from linkern.testing.report.report import Report
from linkern.testing.runner.plan import Plan
from linkern.testing.runner.results import CheckResult
from linkern.testing.runner.shared import SHARED_SESSION
from linkern.testing.target.wire import OWN, packed, read_message, read_prefix

__all__ = ["Results", "folder_of_workers", "write_reports"]

# Where workers leave their results: a name in what pytest-xdist hands to them.
FOLDER = "linkern_results"
RESULTS = pytest.StashKey["Results"]()
_FOLDER = pytest.StashKey[tempfile.TemporaryDirectory[str]]()
_OPTIONS = ("linkern_html", "linkern_json", "linkern_bundle")


@dataclass
class Results:
    """Results of the checks of one plan, as far as they ran in this process."""

    plan: Plan | None = None
    notes: tuple[str, ...] = ()
    checks: list[CheckResult] = field(default_factory=list)
    diagnosis: Diagnosis | None = None

    @classmethod
    def of(cls, config: pytest.Config) -> "Results":
        """Return the results of a run of pytest."""
        return config.stash.setdefault(RESULTS, cls())

    def add(self, plan: Plan, result: CheckResult) -> None:
        """Keep a result, and the cause of what has failed so far."""
        session = SHARED_SESSION.open(plan)
        self.plan, self.notes = session.plan, session.notes
        self.checks.append(result)
        if result.verdict == "failed":
            self.diagnosis = SHARED_SESSION.cause(plan)


def folder_of_workers(config: pytest.Config) -> str | None:
    """Return the folder for the results of workers, if a report will be written."""
    if not any(config.getoption(name, None) for name in _OPTIONS):
        return None
    if _FOLDER not in config.stash:
        config.stash[_FOLDER] = tempfile.TemporaryDirectory(prefix="linkern-")
    return config.stash[_FOLDER].name


def write_reports(config: pytest.Config, plan: Plan) -> list[Path]:
    """Write the reports that the options name; a worker leaves its results instead.

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    OSError
        If a file cannot be written.
    """
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    if worker:
        if FOLDER in worker:
            path = Path(worker[FOLDER], f"{worker['workerid']}.results")
            path.write_bytes(_bytes_of(Results.of(config)))
        return []
    report = _report(config, plan)
    option, written = config.option, list[Path]()
    if option.linkern_html:
        report.to_html(option.linkern_html)
        written.append(Path(option.linkern_html))
    if option.linkern_json:
        report.to_json(option.linkern_json)
        written.append(Path(option.linkern_json))
    if option.linkern_bundle:
        written += bundle.write(report, Path(option.linkern_bundle))
    return written


def _report(config: pytest.Config, plan: Plan) -> Report:
    """Return the report of all processes, checks in their order."""
    parts = [Results.of(config)]
    if _FOLDER in config.stash:
        paths = sorted(Path(config.stash[_FOLDER].name).glob("*.results"))
        parts += [_read(path) for path in paths]
    parts = [part for part in parts if part.plan is not None]
    results = {check.name: check for part in parts for check in part.checks}
    settled = parts[0].plan if parts else None
    order = [check.name for check in plan.chosen() if check.name in results]
    causes = (part.diagnosis for part in parts)
    report = replace(
        report_of(replace(settled or plan, function=plan.function)),
        checks=tuple(results[name] for name in order),
        diagnosis=next((cause for cause in causes if cause is not None), None),
        notes=parts[0].notes if parts else (),
    )
    return replace(report, complete=not report.not_run)


def _bytes_of(results: Results) -> bytes:
    """Return results as a message; a function stays in the process that has it."""
    plan = results.plan and replace(results.plan, function=None)
    return b"".join(packed(replace(results, plan=plan), bytes(16)))


def _read(path: Path) -> Results:
    with path.open("rb") as file:
        results: Results = read_message(file, read_prefix(file), (Results,), OWN)
    return results
