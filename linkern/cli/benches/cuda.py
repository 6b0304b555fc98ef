"""``linkern bench --device cuda``: linkern beside others on a GPU, and copying."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from linkern.bench.cuda import tables
from linkern.bench.cuda.machine import this_device
from linkern.bench.cuda.peers import PEERS
from linkern.bench.cuda.race import Row, race
from linkern.bench.cuda.runs import Run, write_run
from linkern.bench.cuda.tasks import TASKS
from linkern.bench.peers import OURS, Peer, takes_part
from linkern.bench.tasks import Task
from linkern.cli.benches.showing import progress, say
from linkern.testing import UsageError
from linkern.testing.report import terminal

__all__ = ["measure_on_cuda"]

_QUICK = ("causal", "decode-1024")
_NOT_HERE = {"threads": "--threads", "plot_path": "--plot", "compared": "--compare"}


def measure_on_cuda(options: dict[str, Any], commit: str) -> None:
    """Measure, and show.

    Parameters
    ----------
    options : dict
        Of the command.
    commit : str
        Of the code; empty if not known.

    Raises
    ------
    UsageError
        If an option cannot be used, or there is no GPU, before anything is measured.
    """
    for name, flag in _NOT_HERE.items():
        if options[name] is not None:
            msg = f"{flag} cannot be used with --device cuda."
            raise UsageError(msg)
    quick, lengths = options["quick"], tuple(sorted({*options["lengths"]}))
    tasks = _tasks(options["tasks"], quick=quick)
    peers = _peers(options["peers"])
    machine = this_device()

    def run_of(rows: Sequence[Row]) -> Run:
        return Run(machine, commit, options["seed"], tuple(rows))

    console = terminal.wide_enough(Console())
    for line in (*machine.lines(), f"commit {commit or 'unknown'}"):
        say(console, line)
    for peer in peers:
        if not any(takes_part(peer, task) for task in tasks):
            say(console, f"{peer.name}: not installed, or not for these tasks")
    rows: list[Row] = []
    with progress() as show:
        for found in race(
            [(x, _lengths(x, lengths, quick=quick)) for x in tasks],
            peers,
            rounds=3 if quick else 7,
            seed=options["seed"],
            progress=show,
        ):
            rows += found
            part = run_of(found)
            console.print(tables.task_table(part, part.tasks()[0]))
            for line in tables.remarks(part):
                say(console, line)
            if options["json_path"] is not None:  # also if the run is cut short
                write_run(run_of(rows), options["json_path"])
    for line in tables.NOTES:
        say(console, line)
    console.print(tables.goals_table(run_of(rows)))


def _tasks(names: Sequence[str], *, quick: bool) -> tuple[Task, ...]:
    known = {task.name: task for task in TASKS}
    for name in names:
        if name not in known:
            msg = f'--task must be one of {", ".join(known)}, got "{name}".'
            raise UsageError(msg)
    chosen = names or (_QUICK if quick else tuple(known))
    return tuple(known[name] for name in dict.fromkeys(chosen))


def _lengths(task: Task, asked: Sequence[int], *, quick: bool) -> Sequence[int]:
    """Return the lengths of a task; one token takes as long after any number."""
    if asked and task.kind != "decode":
        return asked
    return task.quick if quick else task.lengths


def _peers(names: Sequence[str]) -> tuple[Peer, ...]:
    known = [peer.name for peer in PEERS]
    for name in names:
        if name not in known:
            msg = f'--peer must be one of {", ".join(known)}, got "{name}".'
            raise UsageError(msg)
    return tuple(x for x in PEERS if not names or x.name in (*names, OURS))
