"""The command line: `linkern verify` and `linkern list`."""

import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from linkern._version import __version__
from linkern.adapters.catalogue import Entry, installed
from linkern.testing import (
    CHECKS,
    OPERATORS,
    CheckResult,
    Contract,
    Report,
    UsageError,
    canaries,
    rendering,
    reproduce,
)
from linkern.testing.api import report_of
from linkern.testing.frameworks import FRAMEWORKS
from linkern.testing.plan import PROFILES, Plan
from linkern.testing.report import write_json
from linkern.testing.runner import CheckFinished, run

__all__ = ["main"]

EXIT_USAGE = 2
EXIT_CANARIES = 4
CRASH_FOLDER = Path("linkern-repro")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="linkern")
def main() -> None:
    """Use the numerical reference and the referee for linear attention."""


@main.command("list")
def list_() -> None:
    """Show the operators and the checks."""
    console = rendering.wide_enough(Console())
    for title, rows in (
        ("operators", [(o.name, o.summary) for o in OPERATORS.values()]),
        ("checks", [(c.name, c.statement) for c in CHECKS.values()]),
    ):
        table = Table(title=title, title_justify="left", show_header=False)
        table.add_column(no_wrap=True)
        for row in rows:
            table.add_row(*row)
        console.print(table)


def _in_a_folder(
    context: click.Context, parameter: click.Parameter, path: Path | None
) -> Path | None:
    """Refuse a file that could not be written before the run, not after it."""
    if path is not None and not path.absolute().parent.is_dir():
        msg = f"there is no folder {path.absolute().parent}."
        raise click.BadParameter(msg, context, parameter)
    return path


@main.command()
@click.argument("target", required=False)
@click.option("--op", help="Operator that the target claims to be (`linkern list`).")
@click.option(
    "--declare",
    multiple=True,
    metavar="KEY=VALUE",
    help="What the target declares; undeclared means strictest. Repeatable.",
)
@click.option("--contract", type=click.Path(path_type=Path), help="The same, as TOML.")
@click.option(
    "--framework", default="numpy", show_default=True, help="/".join(FRAMEWORKS)
)
@click.option("--device", default="cpu", show_default=True)
@click.option("--dtype", multiple=True, help="Default float32 and float64. Repeatable.")
@click.option(
    "--profile", default="default", show_default=True, help="/".join(PROFILES)
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0))
@click.option("--check", multiple=True, metavar="NAME", help="Default all. Repeatable.")
@click.option(
    "--expect-failure",
    multiple=True,
    metavar="CHECK=REASON",
    help="A check that must fail; if it passes, that is a failure. Repeatable.",
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    metavar="FILE",
    callback=_in_a_folder,
    help="Write the report as JSON.",
)
@click.option(
    "--repro",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write each counterexample as .npz and a runnable script.",
)
@click.option(
    "--timeout", default=20.0, show_default=True, help="Seconds for one call."
)
@click.option("--in-process", is_flag=True, help="Do not use a child process.")
def verify(target: str | None, **options: Any) -> None:
    """Judge TARGET, `package.module:attribute` or `path/to/file.py:attribute`.

    Without TARGET: linkern's own forms on every array library installed, and every
    published kernel it knows that is installed.

    Exit code: 0 all checks passed; 1 a check failed; 2 the target, contract or options
    cannot be used; 3 nothing could be concluded; 4 the referee failed its own canaries.
    """
    console = rendering.wide_enough(Console())
    try:
        plans = _plans(target, options)
        _trust_the_referee(options["seed"])
        reports = [_judge(console, plan, options, len(plans) > 1) for plan in plans]
        if options["json_path"] is not None:
            write_json(reports, options["json_path"])
    except (UsageError, OSError) as error:
        # OSError: a report or reproducer that cannot be written; verdicts are printed.
        click.echo(f"linkern: {error}", err=True)
        sys.exit(EXIT_USAGE)
    if len(reports) > 1:
        console.print(_overview(plans, reports))
    codes = {report.exit_code for report in reports}
    sys.exit(next((code for code in (1, 3) if code in codes), 0))


def _plans(target: str | None, options: dict[str, Any]) -> list[Plan]:
    """Return what is to be judged."""
    shared = {
        "profile": options["profile"],
        "seed": options["seed"],
        "checks": options["check"],
        "timeout": options["timeout"],
        "in_process": options["in_process"],
    }
    if target is None:
        return [_plan_of(entry, shared) for entry in installed(options["op"])]
    if options["op"] is None:
        msg = f"say which operator the target is with --op: {', '.join(OPERATORS)}."
        raise UsageError(msg)
    declared: dict[str, Any] = {}
    if options["contract"] is not None:
        declared.update(Contract.from_file(options["contract"]))
    declared.update(_pairs("--declare", "KEY=VALUE", options["declare"]))
    return [
        Plan(
            target=target,
            op=options["op"],
            contract=Contract.from_mapping(declared),
            framework=options["framework"],
            device=options["device"],
            dtypes=options["dtype"] or ("float32", "float64"),
            expect_failure=_pairs(
                "--expect-failure", "CHECK=REASON", options["expect_failure"]
            ),
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


def _pairs(option: str, form: str, texts: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            msg = f'{option} must have the form {form}, got "{text}".'
            raise UsageError(msg)
        pairs[key.strip()] = value.strip()
    return pairs


def _trust_the_referee(seed: int) -> None:
    """Withhold every verdict if planted defects go unnoticed."""
    wrong = canaries.failures(seed)
    if wrong:
        click.echo(f"linkern: no verdict, {'; '.join(wrong)}.", err=True)
        sys.exit(EXIT_CANARIES)


def _judge(
    console: Console, plan: Plan, options: dict[str, Any], one_of_many: bool
) -> Report:
    """Run one plan under a progress bar and print its report."""
    results: list[CheckResult] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(plan.target, total=len(plan.chosen()))
        for event in run(plan):
            if isinstance(event, CheckFinished):
                results.append(event.result)
                progress.advance(bar)
            else:
                progress.update(bar, description=f"{plan.target}  {event.name}")
    found = report_of(plan, results)
    if not one_of_many or found.exit_code:
        console.print(rendering.report(plan, found))
    for result in results:
        example = result.counterexample
        folder = options["repro"]
        if folder is None and example is not None and example.died:
            folder = CRASH_FOLDER  # what killed a process must not be lost
        if folder is not None and example is not None:
            console.print(f"wrote {reproduce.write(plan, result, example, folder)}")
    return found


def _overview(plans: list[Plan], reports: list[Report]) -> Table:
    table = Table(title="verdicts", title_justify="left")
    for name in ("target", "op", "library", "options", "verdict", "checks"):
        table.add_column(name, overflow="fold", no_wrap=name == "verdict")
    for plan, found in zip(plans, reports, strict=True):
        words = ", ".join(f"{k}={v}" for k, v in plan.options.items() if v is not None)
        row = (plan.target, plan.op, plan.framework, words)
        table.add_row(*row, *rendering.summary_row(found))
    return table
