"""``linkern bench generation``: what generating costs, token by token."""

import sys
from dataclasses import replace
from typing import Any

import click
from rich.console import Console

from linkern.bench import contestants, models
from linkern.bench.generation import Contestant, Measured, measure
from linkern.bench.machine import this_machine
from linkern.bench.plotting import plot, require_matplotlib
from linkern.bench.report import Report, quoted_table, write_json
from linkern.bench.timing import Schedule
from linkern.cli.benches.showing import progress, say
from linkern.cli.options import EXIT_USAGE, file_option
from linkern.testing import UsageError
from linkern.testing.report import terminal

__all__ = ["generation"]

LENGTHS = (784, 3072, 16384)
QUICK_LENGTHS = (196, 784)
ALONE = "attention alone: generating with one layer, 8 heads of 32, batch 1, float32"
WHOLE = "whole models: NumPy, {depth} layers, 8 heads of 32, batch 1, float32"


@click.command()
@click.option(
    "--length",
    "lengths",
    multiple=True,
    type=click.IntRange(min=1),
    metavar="N",
    help=f"Tokens to generate. Default {', '.join(map(str, LENGTHS))}. Repeatable.",
)
@click.option(
    "--contestant",
    "names",
    multiple=True,
    metavar="NAME",
    help="Who is measured beside the linear ones. Default all. Repeatable.",
)
@click.option(
    "--depth",
    default=4,
    show_default=True,
    type=click.IntRange(min=1),
    metavar="N",
    help="Layers of the whole models.",
)
@click.option("--quick", is_flag=True, help="Short lengths, few rounds: seconds.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0))
@file_option("--json", "Write what was measured as JSON.")
@file_option("--plot", "Draw time and memory against length (.png, .svg, .pdf).")
def generation(**options: Any) -> None:
    """Generate token by token: linear attention, softmax cached and not, LSH.

    First with one layer of attention alone, then with whole models.

    Exit code: 0 measured; 2 the options cannot be used.
    """
    console = terminal.wide_enough(Console())
    try:
        if options["plot_path"] is not None:
            require_matplotlib()
        seed, depth, quick = options["seed"], options["depth"], options["quick"]
        settings = _chosen(
            {
                ALONE: contestants.attention_alone(seed=seed),
                WHOLE.format(depth=depth): models.whole_models(depth=depth, seed=seed),
            },
            options["names"],
        )
        lengths = sorted({*options["lengths"]}) or (QUICK_LENGTHS if quick else LENGTHS)
        load = this_machine().load  # of others, before ours
        reports = []
        for setting, racing in settings.items():
            measured = _measured(racing, tuple(lengths), quick=quick)
            reports.append(Report(setting, racing[0].name, measured))
        machine = replace(this_machine(), load=load)
        for line in machine.lines():
            say(console, line)
        for report in reports:
            console.print(report.table())
            for line in report.notes():
                say(console, line)
        console.print(quoted_table())
        if options["json_path"] is not None:
            write_json(machine, reports, options["json_path"])
        if options["plot_path"] is not None:
            plot(reports, options["plot_path"])
    except (UsageError, ImportError, OSError, ValueError) as error:
        # OSError, ValueError: files that cannot be written; the table is printed.
        click.echo(f"linkern: {error}", err=True)
        sys.exit(EXIT_USAGE)


def _chosen(
    known: dict[str, tuple[Contestant, ...]], names: tuple[str, ...]
) -> dict[str, tuple[Contestant, ...]]:
    """Return the settings in which somebody was named, each with its first one."""
    if not names:
        return known
    all_names = [c.name for racing in known.values() for c in racing]
    for name in names:
        if name not in all_names:
            known_ = ", ".join(all_names)
            msg = f'--contestant must be one of {known_}, got "{name}".'
            raise UsageError(msg)
    return {
        setting: tuple(c for c in racing if c is racing[0] or c.name in names)
        for setting, racing in known.items()
        if any(c.name in names for c in racing)
    }


def _measured(
    contestants: tuple[Contestant, ...], lengths: tuple[int, ...], *, quick: bool
) -> tuple[Measured, ...]:
    """Measure under a line that says what is running."""
    schedule = Schedule(rounds=5, budget=0.4, window=0) if quick else Schedule()
    samples = 6 if quick else 12
    with progress() as show:
        return measure(
            contestants,
            lengths,
            schedule,
            samples=samples,
            progress=lambda name, length: show(f"{name}, {length} tokens"),
        )
