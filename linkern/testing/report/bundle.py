"""Bundle: a folder with the report, contract, waivers and reproducers of a verdict.

`check` runs the reproducers again on a machine that has the target.
"""

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linkern.testing.errors import UsageError
from linkern.testing.report.report import Report
from linkern.testing.runner.reproduce import write as write_script

__all__ = ["Reproduction", "check", "write"]

REPORT, PAGE, CONTRACT = "report.json", "report.html", "contract.toml"
WAIVERS, SCRIPTS = "waivers.toml", "reproducers"
# A script makes a few calls; importing a library can take a minute.
SCRIPT_TIMEOUT = 300.0
# Meaning of the exit code of a script or of `linkern verify`.
OUTCOMES = {0: "gone", 1: "reproduced"}
NOT_IN_OUTPUTS = 3


@dataclass(frozen=True)
class Reproduction:
    """Outcome of running one counterexample again.

    Parameters
    ----------
    check : str
        The law.
    outcome : {"reproduced", "gone", "error"}
        "reproduced" if the law is still broken.
    said : str
        The last line printed by the script.
    """

    check: str
    outcome: str
    said: str


def write(report: Report, folder: Path) -> list[Path]:
    """Write the report, contract, waivers and reproducers of a verdict.

    Parameters
    ----------
    report : Report
        Verdicts and counterexamples.
    folder : Path
        Created if it does not exist.

    Returns
    -------
    list of Path
        The files.
    """
    plan, written = report.plan, []
    folder.mkdir(parents=True, exist_ok=True)
    for result in report.checks:
        if result.counterexample is not None:
            example = result.counterexample
            script = write_script(plan, result, example, folder / SCRIPTS)
            written += [script, script.with_suffix(".npz")]
    (folder / CONTRACT).write_text(_toml(plan.contract.declared()), encoding="utf-8")
    waivers = "[expect_failure]\n" + _toml(plan.expect_failure)
    (folder / WAIVERS).write_text(waivers, encoding="utf-8")
    report.to_html(folder / PAGE)
    # Last: a folder without it was not finished.
    report.to_json(folder / REPORT)
    return [*written, *(folder / name for name in (CONTRACT, WAIVERS, PAGE, REPORT))]


def check(folder: Path) -> list[Reproduction]:
    """Run the reproducers of a folder again.

    Parameters
    ----------
    folder : Path
        A folder written by `write`.

    Returns
    -------
    list of Reproduction
        One for each failure that the report lists.

    Raises
    ------
    UsageError
        If a file is missing.
    """
    try:
        report = json.loads((folder / REPORT).read_text(encoding="utf-8"))
        failures = [c for c in report["checks"] if c["counterexample"] is not None]
    except (OSError, ValueError, KeyError, TypeError) as error:
        msg = f"{folder} is not a bundle: {REPORT} cannot be read ({error!r})."
        raise UsageError(msg) from None
    return [_reproduced(folder, failure) for failure in failures]


def _reproduced(folder: Path, failure: Mapping[str, Any]) -> Reproduction:
    name = failure["name"]
    scripts = sorted((folder / SCRIPTS).glob(f"*-{name}.py"))
    if not scripts:
        msg = f"{folder} is not whole: there is no reproducer of {name}."
        raise UsageError(msg)
    code, last_line = _run([sys.executable, str(scripts[0])])
    if code == NOT_IN_OUTPUTS:
        words = shlex.split(failure["again"])[1:]
        program = "from linkern.cli import main; main()"
        code, last_line = _run([sys.executable, "-c", program, *words])
    return Reproduction(name, OUTCOMES.get(code, "error"), last_line)


def _run(command: list[str]) -> tuple[int, str]:
    try:
        process = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SCRIPT_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, f"did not end within {SCRIPT_TIMEOUT:g} s"
    lines = (process.stdout.strip() or process.stderr.strip()).splitlines()
    return process.returncode, lines[-1] if lines else ""


def _toml(values: Mapping[str, Any]) -> str:
    """Return values as TOML: numbers, truth values, texts and lists as JSON."""
    return "".join(
        f"{key} = {json.dumps(list(v) if isinstance(v, tuple) else v)}\n"
        for key, v in values.items()
    )
