"""Bundle: a folder with report, contract, waivers, reproducers and the kernel's file.

All paths in it are relative to it, so it can be sent; `check` runs its reproducers.
"""

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from linkern.testing.checks import CHECKS
from linkern.testing.errors import UsageError
from linkern.testing.report.report import Report
from linkern.testing.runner.reproduce import command
from linkern.testing.runner.reproduce import write as write_script
from linkern.testing.spec.declarations import nearest
from linkern.testing.target.child import printable
from linkern.testing.target.sandbox import Sandbox
from linkern.testing.target.sources import file_of, local_imports

__all__ = ["Reproduction", "check", "write"]

REPORT, PAGE, CONTRACT = "report.json", "report.html", "contract.toml"
WAIVERS, SCRIPTS, SOURCES = "waivers.toml", "reproducers", "kernel"
INPUTS = "inputs"
README = "README.md"
# A script makes a few calls; importing a library can take a minute.
SCRIPT_TIMEOUT = 300.0
# The first word of a command that judges a check again.
PROGRAM = "linkern "
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


def write(report: Report, folder: Path, *, source: bool = True) -> list[Path]:
    """Write the report, contract, waivers, reproducers and files of a verdict.

    Parameters
    ----------
    report : Report
        Verdicts and counterexamples.
    folder : Path
        Created if it does not exist.
    source : bool
        True to copy the target's file, and the files beside it that it imports.

    Returns
    -------
    list of Path
        The files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written, missing = _copied(report.plan.target, folder) if source else ([], [])
    if report.plan.inputs is not None:
        (folder / INPUTS).mkdir(exist_ok=True)
        written.append(folder / _inputs(report.plan.inputs))
        shutil.copyfile(report.plan.inputs, written[-1])
    report = _relative(report)
    plan = report.plan
    for result in report.checks:
        if result.counterexample is not None:
            example = result.counterexample
            scripts = folder / SCRIPTS
            script = write_script(plan, result, example, scripts, root=folder)
            written += [script, script.with_suffix(".npz")]
    waivers = "[expect_failure]\n" + _toml(plan.expect_failure)
    texts = {
        README: _readme(report, missing),
        CONTRACT: _toml(plan.contract.declared()),
        WAIVERS: waivers,
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    report.to_html(folder / PAGE)
    # Last: a folder without it was not finished.
    report.to_json(folder / REPORT)
    return [*written, *(folder / name for name in (*texts, PAGE, REPORT))]


def _copied(target: str, folder: Path) -> tuple[list[Path], list[str]]:
    """Copy the target's file and the files beside it that it imports.

    Return the copies, and the names of packages beside it that were not copied.
    """
    path = file_of(target)
    if path is None:
        return [], []
    beside, packages = local_imports(path) if ".py:" in target else ([], [])
    (folder / SOURCES).mkdir(exist_ok=True)
    copies = [folder / SOURCES / one.name for one in (path, *beside)]
    for one, copy in zip((path, *beside), copies, strict=True):
        shutil.copyfile(one, copy)
    return copies, packages


def _inputs(path: str) -> str:
    """Return the name in the bundle of the file with the inputs of the user."""
    return f"{INPUTS}/{Path(path).name}"


def _relative(report: Report) -> Report:
    """Return the report of the files in the bundle, as named from there."""
    names, plan = {}, report.plan
    place, _, attribute = plan.target.rpartition(":")
    if place.endswith(".py"):
        names[plan.target] = f"{SOURCES}/{Path(place).name}:{attribute}"
    if plan.inputs is not None:
        names[plan.inputs] = _inputs(plan.inputs)
        plan = replace(plan, inputs=names[plan.inputs])
    plan = replace(plan, target=names.get(plan.target, plan.target))

    def renamed(again: str) -> str:
        if not again.startswith(PROGRAM):  # a call, or none
            return again
        return shlex.join(names.get(word, word) for word in shlex.split(again))

    checks = (replace(c, again=renamed(c.again)) for c in report.checks)
    return replace(report, plan=plan, checks=tuple(checks))


def _readme(report: Report, missing: Sequence[str]) -> str:
    """Return the page that says what the folder is, and what to type."""
    target = report.plan.target
    absent = f" It imports {', '.join(missing)}, which is not here." if missing else ""
    inputs = ""
    if report.plan.inputs is not None:
        inputs = f"\n| `{INPUTS}/` | the inputs on which laws were judged first |"
    return f"""# {target}: {report.verdict}

A verdict of linkern {report.to_dict()["linkern"]} on `{target}` as `{report.plan.op}`.

    python -m pip install linkern
    linkern check-bundle .       # run every counterexample again
    {command(report.plan)}

| file | what it is |
|---|---|
| `{PAGE}`, `{REPORT}` | the report, as a page and as data |
| `{SCRIPTS}/` | each counterexample: a script, and its inputs as `.npz` |
| `{SOURCES}/` | the kernel's file; if it is missing, put it there.{absent} |{inputs}
| `{CONTRACT}`, `{WAIVERS}` | what it declares, and the failures that were expected |
"""


def check(folder: Path, *, sandbox: bool = False) -> list[Reproduction]:
    """Run the reproducers of a folder again.

    They are programs, and so is the kernel: of a folder from somebody else, take the
    sandbox.

    Parameters
    ----------
    folder : Path
        A folder written by `write`.
    sandbox : bool
        Run them by bubblewrap.

    Returns
    -------
    list of Reproduction
        One for each failure that the report lists.

    Raises
    ------
    UsageError
        If a file is missing, or the report is not one.
    """
    failures = _failures(folder)
    box = Sandbox((folder,)) if sandbox else None
    return [_reproduced(folder, failure, box) for failure in failures]


class _Failure(NamedTuple):
    """A check that failed, the words that judge it again, and if it has a script."""

    check: str
    again: list[str]
    has_script: bool


def _failures(folder: Path) -> list[_Failure]:
    """Return the checks that failed, expected or not."""
    try:
        report = json.loads((folder / REPORT).read_text(encoding="utf-8"))
        failures = [
            _Failure(
                str(c["name"]),
                shlex.split(c["again"])[1:] if c["again"].startswith(PROGRAM) else [],
                c["counterexample"] is not None,
            )
            for c in report["checks"]
            if c["verdict"] == "failed" or c["counterexample"] is not None
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        msg = f"{folder} is not a bundle: {REPORT} cannot be read ({error!r})."
        raise UsageError(msg) from None
    for failure in failures:
        if failure.check not in CHECKS:
            raise UsageError(nearest("check", failure.check, CHECKS))
    return failures


def _reproduced(
    folder: Path, failure: _Failure, sandbox: Sandbox | None
) -> Reproduction:
    """Run the script of a failure, or its command if outputs do not show it."""
    name, code, last_line = failure.check, NOT_IN_OUTPUTS, ""
    if failure.has_script:
        code, last_line = _run(_script(folder, name), folder, sandbox)
    if code == NOT_IN_OUTPUTS:
        if not failure.again:
            last_line = "it was judged by a call of a function that no file holds"
            return Reproduction(name, "error", last_line)
        program = "from linkern.cli import main; main()"
        words = [sys.executable, "-c", program, *failure.again]
        code, last_line = _run(words, folder, sandbox)
    return Reproduction(name, OUTCOMES.get(code, "error"), printable(last_line))


def _script(folder: Path, name: str) -> list[str]:
    """Return the words that run the reproducer of a check."""
    inside = (folder / SCRIPTS).resolve()
    scripts = [path.resolve() for path in sorted(inside.glob(f"*-{name}.py"))]
    if not scripts or scripts[0].parent != inside:
        msg = f"{folder} is not whole: there is no reproducer of {name}."
        raise UsageError(msg)
    return [sys.executable, str(scripts[0])]


def _run(words: list[str], folder: Path, sandbox: Sandbox | None) -> tuple[int, str]:
    """Run a command in the bundle; return its exit code and its last line."""
    if sandbox is not None:
        words = sandbox.words(words)
    try:
        process = subprocess.run(
            words,
            cwd=folder,
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
