"""``linkern verify``: judge one target, or the whole catalogue."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from linkern.adapters.catalogue import Entry, installed
from linkern.cli.options import (
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    contract_of,
    file_option,
    in_existing_folder,
    inputs_option,
    target_options,
)
from linkern.testing import OPERATORS, Contract, Report, UsageError
from linkern.testing.api import report_of, reports
from linkern.testing.report import bundle, github, terminal
from linkern.testing.report.report import json_text, write_json
from linkern.testing.runner import canaries, reproduce
from linkern.testing.runner.loop import CheckFinished, CheckStarted, RoundStarted
from linkern.testing.runner.plan import PROFILES, Plan, fresh_seed
from linkern.testing.spec.declarations import keywords, pairs
from linkern.testing.target.clock import Clock

__all__ = ["run_canaries", "verify"]

EXIT_CANARIES = 4


@click.command()
@target_options
@inputs_option
@click.option(
    "--profile", default="default", show_default=True, help="/".join(PROFILES)
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="N",
    help="Which examples; the report names it. Default: 64 bits drawn anew.",
)
@click.option("--check", multiple=True, metavar="NAME", help="Default all. Repeatable.")
@click.option(
    "--expect-failure",
    multiple=True,
    metavar="CHECK=REASON",
    help="A check that must fail; if it passes, that is a failure. Repeatable.",
)
@click.option(
    "--fail-fast",
    is_flag=True,
    help="Stop at the first check that fails, and name its cause.",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processes that run checks, each with a target of its own. Default: one for "
    "each core; 1 on a device.",
)
@click.option(
    "--seconds",
    type=float,
    metavar="S",
    help="End after so many seconds: every law gets few examples before any gets many.",
)
@click.option(
    "--require",
    multiple=True,
    metavar="CHECK|N",
    help="Without this check, or so many of them, nothing is concluded; with them, "
    "what the time leaves out does not matter. Repeatable.",
)
@file_option(
    "--json",
    "Write the report as JSON, and anew with every check that ends; - is standard "
    "output, which then gets nothing else.",
    dash=True,
)
@file_option("--html", "Write the report as one HTML page.")
@click.option(
    "--repro",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write each counterexample as .npz and a runnable script.",
)
@click.option(
    "--bundle",
    "bundle_path",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    callback=in_existing_folder,
    help="Write all of that, contract and waivers to a folder that can be sent.",
)
@click.option(
    "--no-source",
    is_flag=True,
    help="Leave the kernel's file out of the bundle.",
)
@click.option(
    "--annotate",
    type=click.Choice(["github"]),
    help="Annotate the kernel's line in a pull request, and write a job summary.",
)
@click.option(
    "--verbose", is_flag=True, help="Explain every failure, and show every check."
)
def verify(target: str | None, **options: Any) -> None:
    """Judge a kernel by the laws of its operator.

    TARGET is `package.module:attribute` or `path/to/file.py:attribute`. Without it:
    linkern's own forms on every array library installed, and every published kernel it
    knows that is installed.

    Exit code: 0 all checks passed; 1 a check failed; 2 the target, contract or options
    cannot be used; 3 nothing could be concluded; 4 the referee failed its own canaries.
    """
    clock = Clock(options["seconds"])
    to_stdout = options["json_path"] == Path("-")
    console = Console(stderr=to_stdout)
    if to_stdout:
        options["json_path"] = None
    if options["seed"] is None:
        options["seed"] = fresh_seed()
    try:
        plans = _plans(target, options)
        run_canaries(options["seed"])
        several = len(plans) > 1
        verdicts = [_judge(console, plan, clock, options, several) for plan in plans]
        if options["json_path"] is not None:
            write_json(verdicts, options["json_path"])
            _name_file(console, options["json_path"])
        if to_stdout:
            click.echo(json_text(verdicts), nl=False)
    except (UsageError, OSError) as error:
        # OSError: a report or reproducer that cannot be written; verdicts are printed.
        click.echo(f"linkern: {error}", err=True)
        sys.exit(EXIT_USAGE)
    if len(verdicts) > 1:
        terminal.wide_enough(console).print(_overview(verdicts))
    codes = {report.exit_code for report in verdicts}
    sys.exit(next((code for code in (1, 3) if code in codes), 0))


def _plans(target: str | None, options: dict[str, Any]) -> list[Plan]:
    """Return the plans of the named target, or of the whole catalogue."""
    shared = {
        "profile": options["profile"],
        "seed": options["seed"],
        "checks": options["check"],
        "timeout": options["timeout"],
        "memory_limit": options["memory"],
        "in_process": options["in_process"],
        "interpret": options["interpret"],
        "sandbox": options["sandbox"],
        "fingerprint": bool(options["html_path"] or options["bundle_path"]),
        "fail_fast": options["fail_fast"],
        "jobs": options["jobs"],
        "seconds": options["seconds"],
    }
    command = options["command"]
    if target is not None and command is not None:
        msg = "TARGET and --command exclude each other; give one of them."
        raise UsageError(msg)
    if target is None and command is None:
        for single in ("html_path", "bundle_path", "seconds", "inputs", "require"):
            if options[single] not in (None, ()):
                msg = f"--{single.removesuffix('_path')} is for one target; name it."
                raise UsageError(msg)
        if options["device"] != "cpu":
            msg = "--device is for one target: the catalogue is judged on a CPU."
            raise UsageError(msg)
        return [_plan_of(entry, shared) for entry in installed(options["op"])]
    if options["op"] is None:
        msg = f"say which operator the target is with --op: {', '.join(OPERATORS)}."
        raise UsageError(msg)
    expected = pairs("--expect-failure", "CHECK=REASON", options["expect_failure"])
    for name in expected:
        if options["check"] and name not in options["check"]:
            msg = f'"{name}" is expected to fail, but --check leaves it out.'
            raise UsageError(msg)
    return [
        Plan(
            target=target or command,
            op=options["op"],
            contract=contract_of(options),
            framework=options["framework"],
            device=options["device"],
            dtypes=options["dtype"],
            expect_failure=expected,
            options=keywords("--option", options["option"]),
            command=command,
            inputs=options["inputs"],
            require=options["require"],
            **shared,
        )
    ]


def _plan_of(entry: Entry, shared: dict[str, Any]) -> Plan:
    expected = entry.expect_failure
    if shared["checks"]:
        expected = {k: v for k, v in expected.items() if k in shared["checks"]}
    return Plan(
        target=entry.target,
        op=entry.op,
        contract=Contract.from_mapping(entry.declare),
        framework=entry.framework,
        dtypes=entry.dtypes,
        expect_failure=expected,
        options=entry.options,
        **shared,
    )


def run_canaries(seed: int) -> None:
    """Exit without a verdict if a planted defect goes unnoticed."""
    wrong = canaries.failures(seed)
    if wrong:
        click.echo(f"linkern: no verdict, {'; '.join(wrong)}.", err=True)
        sys.exit(EXIT_CANARIES)


def _judge(
    console: Console,
    plan: Plan,
    clock: Clock,
    options: dict[str, Any],
    one_of_many: bool,
) -> Report:
    """Run one plan under a progress bar, print its report and write its files."""
    report = report_of(plan)
    json_path = None if one_of_many else options["json_path"]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    interrupted = False
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(plan.target, total=len(plan.chosen()))
        try:
            for event, report in reports(plan, clock):
                if isinstance(event, CheckStarted):
                    progress.update(bar, description=f"{plan.target}  {event.name}")
                elif isinstance(event, RoundStarted):
                    progress.reset(bar, total=event.laws)
                elif isinstance(event, CheckFinished):
                    progress.advance(bar)
                    if json_path is not None:
                        report.to_json(json_path)
        except KeyboardInterrupt:
            interrupted = True
    if not one_of_many or report.exit_code:
        terminal.show(console, report, verbose=options["verbose"])
    _write(console, report, options)
    if interrupted:
        if json_path is not None:
            _name_file(console, json_path)
        sys.exit(EXIT_INTERRUPTED)
    return report


def _write(console: Console, report: Report, options: dict[str, Any]) -> None:
    crashes: Path | None = None
    for result in report.checks:
        example = result.counterexample
        folder = options["repro"]
        if folder is None and example is not None and example.died:
            # The input of a crash is never lost, and never in anyone's way.
            folder = crashes = crashes or Path(tempfile.mkdtemp(prefix="linkern-"))
        if folder is not None and example is not None:
            script = reproduce.write(report.plan, result, example, folder)
            for path in (script, script.with_suffix(".npz")):
                _name_file(console, path)
    if options["html_path"] is not None:
        report.to_html(options["html_path"])
        _name_file(console, options["html_path"])
    if options["bundle_path"] is not None:
        source = not options["no_source"]
        for path in bundle.write(report, options["bundle_path"], source=source):
            _name_file(console, path)
    if options["annotate"] == "github":
        _annotate(report)


def _annotate(report: Report) -> None:
    """Print the workflow commands of GitHub, and add to the summary of the job."""
    for line in github.annotations(report):
        click.echo(line)
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(github.summary(report))


def _name_file(console: Console, path: Path) -> None:
    """Say that a file was written, on one line whatever the width."""
    console.print(Text(f"wrote {path}"), soft_wrap=True)


def _overview(reports: list[Report]) -> Table:
    table = Table(title="verdicts", title_justify="left")
    for name in ("target", "op", "library", "options", "verdict", "checks"):
        table.add_column(name, overflow="fold", no_wrap=name == "verdict")
    for report in reports:
        plan = report.plan
        words = ", ".join(f"{k}={v}" for k, v in plan.options.items() if v is not None)
        row = (plan.target, plan.op, plan.framework, words)
        table.add_row(*row, *terminal.summary_row(report))
    return table
