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
from typing import Any

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
README = "README.md"
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


def write(report: Report, folder: Path, *, source: bool = True) -> list[Path]:
    """Write the report, contract, waivers, reproducers and sources of a verdict.

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


def _relative(report: Report) -> Report:
    """Return the report of the file in the bundle, as named from there."""
    place, _, attribute = report.plan.target.rpartition(":")
    if not place.endswith(".py"):
        return report
    name = f"{SOURCES}/{Path(place).name}:{attribute}"
    plan = replace(report.plan, target=name)
    checks = (replace(c, again=command(plan, c.name)) for c in report.checks)
    return replace(report, plan=plan, checks=tuple(checks))


def _readme(report: Report, missing: Sequence[str]) -> str:
    """Return the page that says what the folder is, and what to type."""
    target = report.plan.target
    absent = f" It imports {', '.join(missing)}, which is not here." if missing else ""
    return f"""# {target}: {report.verdict}

A verdict of linkern {report.to_dict()["linkern"]} on `{target}` as `{report.plan.op}`.

    python -m pip install linkern
    linkern check-bundle .       # run every counterexample again
    {command(report.plan)}

| file | what it is |
|---|---|
| `{PAGE}`, `{REPORT}` | the report, as a page and as data |
| `{SCRIPTS}/` | each counterexample: a script, and its inputs as `.npz` |
| `{SOURCES}/` | the kernel's file; if it is missing, put it there.{absent} |
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
    return [_reproduced(folder, name, again, box) for name, again in failures]


def _failures(folder: Path) -> list[tuple[str, list[str]]]:
    """Return the checks that failed, and the words that judge each again."""
    try:
        report = json.loads((folder / REPORT).read_text(encoding="utf-8"))
        failures = [
            (str(c["name"]), shlex.split(c["again"])[1:])
            for c in report["checks"]
            if c["counterexample"] is not None
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        msg = f"{folder} is not a bundle: {REPORT} cannot be read ({error!r})."
        raise UsageError(msg) from None
    for name, _ in failures:
        if name not in CHECKS:
            raise UsageError(nearest("check", name, CHECKS))
    return failures


def _reproduced(
    folder: Path, name: str, again: list[str], sandbox: Sandbox | None
) -> Reproduction:
    inside = (folder / SCRIPTS).resolve()
    scripts = [path.resolve() for path in sorted(inside.glob(f"*-{name}.py"))]
    if not scripts or scripts[0].parent != inside:
        msg = f"{folder} is not whole: there is no reproducer of {name}."
        raise UsageError(msg)
    code, last_line = _run([sys.executable, str(scripts[0])], folder, sandbox)
    if code == NOT_IN_OUTPUTS:
        program = "from linkern.cli import main; main()"
        words = [sys.executable, "-c", program, *again]
        code, last_line = _run(words, folder, sandbox)
    return Reproduction(name, OUTCOMES.get(code, "error"), printable(last_line))


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
