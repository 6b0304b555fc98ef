"""``linkern verify``: judge one target, or the whole catalogue."""

import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from linkern.cli.campaigns import campaign_of, judge
from linkern.cli.files import name_file, write_files
from linkern.cli.options import (
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    STDOUT,
    campaign_options,
    file_option,
    in_existing_folder,
    inputs_option,
    ranks_option,
    target_options,
)
from linkern.cli.plans import plan_of_target
from linkern.testing import Report, UsageError
from linkern.testing.api import report_of, reports
from linkern.testing.report import terminal
from linkern.testing.report.report import json_text
from linkern.testing.runner import canaries
from linkern.testing.runner.loop import CheckFinished, CheckStarted, RoundStarted
from linkern.testing.runner.plan import PROFILES, fresh_seed
from linkern.testing.target.clock import Clock

__all__ = ["run_canaries", "verify"]

EXIT_CANARIES = 4


@click.command()
@target_options
@inputs_option
@ranks_option
@campaign_options
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
    "each core; 1 on a device. With --all: kernels that are judged at a time.",
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

    TARGET is `package.module:attribute` or `path/to/file.py:attribute`. Without it, or
    with --all: linkern's own forms on every array library installed, and every
    published kernel it knows that is installed. With --all and a folder as TARGET: the
    kernel of each of its files, or `folder:attribute`.

    Exit code: 0 all checks passed; 1 a check failed or ended with an error of the
    referee, or one of several kernels is refused; 2 the target, contract or options
    cannot be used; 3 nothing could be concluded; 4 the referee failed its own canaries.
    """
    to_stdout = options["json_path"] == STDOUT
    console = Console(stderr=to_stdout)
    if to_stdout:
        options["json_path"] = None
    if options["no_source"] and options["bundle_path"] is None:
        msg = "--no-source is for --bundle; name a folder with it."
        raise click.UsageError(msg)
    several = options["several"] or (target is None and options["command"] is None)
    try:
        if several:
            campaign = campaign_of(target, options)
            run_canaries(campaign.seed)
            code = judge(console, campaign, options)
            text = campaign.text()
        else:
            report = _judge(console, target, options)
            code, text = report.exit_code, json_text([report])
    except (UsageError, OSError) as error:
        # OSError: a report or reproducer that cannot be written; verdicts are printed.
        click.echo(f"linkern: {error}", err=True)
        sys.exit(EXIT_USAGE)
    if to_stdout:
        click.echo(text, nl=False)
    sys.exit(code)


def run_canaries(seed: int) -> None:
    """Exit without a verdict if a planted defect goes unnoticed."""
    wrong = canaries.failures(seed)
    if wrong:
        click.echo(f"linkern: no verdict, {'; '.join(wrong)}.", err=True)
        sys.exit(EXIT_CANARIES)


def _judge(console: Console, target: str | None, options: dict[str, Any]) -> Report:
    """Judge one target under a progress bar, print its report and write its files."""
    clock = Clock(options["seconds"])
    if options["seed"] is None:
        options["seed"] = fresh_seed()
    plan = plan_of_target(target, options)
    run_canaries(options["seed"])
    report, json_path = report_of(plan), options["json_path"]
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
    terminal.show(console, report, verbose=options["verbose"])
    write_files(console, report, options)
    if json_path is not None:
        if not interrupted:
            report.to_json(json_path)
        name_file(console, json_path)
    if interrupted:
        sys.exit(EXIT_INTERRUPTED)
    return report
