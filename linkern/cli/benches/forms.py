"""``linkern bench``: linkern beside its peers, and both beside the machine's limits."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from linkern.bench import tables
from linkern.bench.machine import this_machine
from linkern.bench.panels import draw_run
from linkern.bench.peers import OURS, PEERS, Peer, takes_part
from linkern.bench.plotting import require_matplotlib
from linkern.bench.race import Row, race
from linkern.bench.records import changes, differences, read_run, write_run
from linkern.bench.runs import Run
from linkern.bench.tasks import TASKS, Task
from linkern.bench.timing import Schedule
from linkern.cli.benches.cuda import measure_on_cuda
from linkern.cli.benches.showing import progress, say
from linkern.cli.options import EXIT_USAGE, file_option
from linkern.kernels.numpy.threads import cores
from linkern.testing import UsageError
from linkern.testing.report import terminal

__all__ = ["bench"]

_QUICK = ("causal", "decode-1")


@click.group(invoke_without_command=True)
@click.option(
    "--task",
    "tasks",
    multiple=True,
    metavar="NAME",
    help=f"Of {', '.join(task.name for task in TASKS)}. Default: all but the last; "
    "--device cuda has others. Repeatable.",
)
@click.option(
    "--length",
    "lengths",
    multiple=True,
    type=click.IntRange(min=1),
    metavar="N",
    help="Tokens. Default: those of the task. Repeatable.",
)
@click.option(
    "--peer",
    "peers",
    multiple=True,
    metavar="NAME",
    help="Who is measured beside linkern. Default: all that are installed. Repeatable.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    metavar="N",
    help="For every contestant. Default: the cores that this process may use.",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="cuda has tasks, peers and goals of its own, and takes no threads.",
)
@click.option("--quick", is_flag=True, help="Two tasks, short lengths, few rounds.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0))
@file_option("--json", "Write what was measured as JSON.")
@file_option("--plot", "Draw roofline, times and crossover (.png, .svg, .pdf).")
@click.option(
    "--compare",
    "compared",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="OLD.json",
    help="Say what has changed beyond noise since that run.",
)
@click.pass_context
def bench(context: click.Context, /, **options: Any) -> None:
    """Measure linear attention: linkern beside its peers and the machine's limits.

    Every contestant is judged against a float64 answer, then all take turns, each in a
    process of its own. `linkern bench generation` measures generating token by token.

    Exit code: 0 measured, whatever goals were missed; 2 the options cannot be used.
    """
    if context.invoked_subcommand is not None:
        return
    try:
        if options["device"] == "cuda":
            measure_on_cuda(options, _commit())
        else:
            _measure(options)
    except (UsageError, ImportError, OSError, ValueError) as error:
        click.echo(f"linkern: {error}", err=True)
        sys.exit(EXIT_USAGE)


def _measure(options: dict[str, Any]) -> None:
    # Whatever cannot be used is said before anything is measured.
    if options["plot_path"] is not None:
        require_matplotlib()
    quick, threads = options["quick"], options["threads"] or cores()
    tasks = _tasks(options["tasks"], quick=quick)
    peers = _peers(options["peers"], tasks)
    old = None if options["compared"] is None else read_run(options["compared"])
    console = terminal.wide_enough(Console())
    machine, commit = this_machine(), _commit()  # the load is that of others

    def run_of(rows: Sequence[Row]) -> Run:
        return Run(machine, commit, threads, options["seed"], tuple(rows))

    for line in machine.lines()[:-1]:  # the threads of the children are ours to say
        say(console, line)
    say(console, f"commit {commit or 'unknown'}; threads: {threads} for everybody")
    rows: list[Row] = []
    for found in _raced(tasks, peers, threads, options):
        rows += found
        part = run_of(found)
        console.print(tables.task_table(part, part.tasks()[0]))
        for line in tables.remarks(part):
            say(console, line)
        if options["json_path"] is not None:  # a run that is cut short leaves something
            write_run(run_of(rows), options["json_path"])
    run = run_of(rows)
    _show(console, run, old)
    if options["plot_path"] is not None:
        draw_run(run, options["plot_path"])


def _tasks(names: Sequence[str], *, quick: bool) -> tuple[Task, ...]:
    known = {task.name: task for task in TASKS}
    for name in names:
        if name not in known:
            msg = f'--task must be one of {", ".join(known)}, got "{name}".'
            raise UsageError(msg)
    if names:
        return tuple(known[name] for name in dict.fromkeys(names))
    if quick:
        return tuple(known[name] for name in _QUICK)
    return tuple(task for task in TASKS if task.default)


def _peers(names: Sequence[str], tasks: Sequence[Task]) -> tuple[Peer, ...]:
    known = {peer.name: peer for peer in PEERS}
    for name in names:
        if name not in known:
            msg = f'--peer must be one of {", ".join(known)}, got "{name}".'
            raise UsageError(msg)
        if not any(takes_part(known[name], task) for task in tasks):
            needs = " and ".join(known[name].needs) or "nothing"
            msg = (
                f'--peer "{name}" has no part in {", ".join(t.name for t in tasks)}: '
                f"it needs {needs} installed, and does {', '.join(known[name].kinds)}."
            )
            raise UsageError(msg)
    return tuple(
        peer
        for peer in PEERS
        if not names or peer.name in names or peer.name.startswith(OURS)
    )


def _raced(
    tasks: Sequence[Task],
    peers: Sequence[Peer],
    threads: int,
    options: dict[str, Any],
) -> Iterator[tuple[Row, ...]]:
    """Measure task by task, under a line that says what is running."""
    quick, lengths = options["quick"], tuple(sorted({*options["lengths"]}))
    with progress() as show:
        yield from race(
            [(x, lengths or (x.quick if quick else x.lengths)) for x in tasks],
            peers,
            Schedule(rounds=3, budget=1.0, window=0.1) if quick else Schedule(),
            threads=threads,
            seed=options["seed"],
            attempts=1 if quick else 3,
            progress=show,
        )


def _show(console: Console, run: Run, old: Run | None) -> None:
    """Show what is not of one task alone."""
    for line in tables.notes(run):
        say(console, line)
    goals = tables.goals_table(run)
    if goals is not None:
        console.print(goals)
    if old is not None:
        for line in differences(old, run):
            say(console, f"not the same machine or software: {line}")
        console.print(_changes_table(old, run))


def _changes_table(old: Run, new: Run) -> Table:
    found = changes(old, new)
    title = (
        f"since commit {old.commit or 'unknown'}; faster, slower: the ranges of "
        "time / GEMM time do not overlap, 3 rounds or more"
    )
    table = Table(title=title, title_justify="left")
    for name in ("task", "tokens", "contestant", "time", "time / GEMM time", "verdict"):
        table.add_column(name, no_wrap=True)
    for change in found:
        relative = "" if change.relative is None else _factor(change.relative.median)
        row = change.row
        time = _factor(change.seconds.median)
        table.add_row(
            row.task, str(row.length), row.peer, time, relative, change.verdict
        )
    if not found:
        table.add_row("nothing was measured in both runs")
    return table


def _factor(x: float) -> str:
    return f"x {x:.2f}"


def _commit() -> str:
    """Return the commit of the code, with a mark if it is changed; empty if unknown."""
    folder = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
