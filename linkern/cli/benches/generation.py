"""``linkern bench generation``: the cost of generating, token by token."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import click
from rich.console import Console

from linkern.bench.figures import draw_generation, require_matplotlib
from linkern.bench.generation import LENGTHS, generation_suite
from linkern.bench.generation.results import write_json
from linkern.bench.generation.tables import generation_notes, published_table
from linkern.bench.legend import legend
from linkern.bench.machine import this_machine
from linkern.bench.peers import Peer
from linkern.bench.records import Row, Run
from linkern.bench.runner import run
from linkern.bench.suites import Suite
from linkern.bench.tables import task_table
from linkern.bench.worker import LocalWorker
from linkern.cli.benches.keeping import Kept, end_interrupted
from linkern.cli.benches.measuring import named
from linkern.cli.benches.terminal import progress, say
from linkern.cli.options import EXIT_USAGE, file_option
from linkern.testing import UsageError
from linkern.testing.report import terminal

__all__ = ["generation"]


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
        suite = generation_suite(options["depth"], options["seed"])
        peers = _chosen(suite, options["names"])
        # Load of others, before ours.
        empty = Run(suite, this_machine(), "", options["seed"], ())
        say(console, *empty.machine.lines())

        def show(part: Run) -> None:
            task = part.tasks()[0]
            console.print(task_table(part, task))
            say(console, *generation_notes(part, task))

        with progress() as tell:
            kept = Kept(empty, options["json_path"], write_json, show)
            result, complete = kept.through(_parts(suite, peers, options, tell))
        say(console, *legend(suite))
        if not complete:
            end_interrupted(options["json_path"])
        console.print(published_table())
        if options["plot_path"] is not None:
            draw_generation(result, options["plot_path"])
    except (UsageError, ImportError, OSError, ValueError) as error:
        # OSError, ValueError: files that cannot be written; the table is printed.
        click.echo(f"linkern: {error}", err=True)
        sys.exit(EXIT_USAGE)


def _chosen(suite: Suite, names: tuple[str, ...]) -> list[Peer]:
    """Return the named peers, and the baseline of every setting that has one."""
    named("--contestant", names, [peer.name for peer in suite.peers])
    baselines = {
        task.name: task.baseline
        for task in suite.tasks
        for peer in suite.peers
        if task.name in (peer.tasks or ()) and (not names or peer.name in names)
    }
    chosen = {*names, *baselines.values()}
    return [peer for peer in suite.peers if not names or peer.name in chosen]


def _parts(
    suite: Suite,
    peers: list[Peer],
    options: dict[str, Any],
    tell: Callable[[str], object],
) -> Iterator[tuple[Row, ...]]:
    """Measure in this process, and yield the rows of each length."""
    quick = options["quick"]
    for part in run(
        [
            (
                replace(task, samples=4) if quick else task,
                sorted({*options["lengths"]})
                or (task.quick if quick else task.lengths),
            )
            for task in suite.tasks
        ],
        peers,
        suite.quick_schedule if quick else suite.schedule,
        seed=options["seed"],
        progress=tell,
        start=LocalWorker,
    ):
        yield tuple(row for row in part if row.seconds is not None)  # not too long
