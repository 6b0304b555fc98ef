"""One run of a suite at a terminal: options to tasks and peers, rows to tables."""

import secrets
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from linkern.bench import tables
from linkern.bench.candidates import candidate_peer
from linkern.bench.comparison import changes, differences
from linkern.bench.cuda.explain import explained
from linkern.bench.cuda.machine import this_device
from linkern.bench.figures import draw_run, require_matplotlib
from linkern.bench.files import read_run, write_run
from linkern.bench.legend import legend
from linkern.bench.machine import this_machine
from linkern.bench.patience import Patience
from linkern.bench.peers import Peer, takes_part
from linkern.bench.records import Run
from linkern.bench.runner import run
from linkern.bench.suites import Suite
from linkern.bench.tasks import OURS, Task
from linkern.bench.workers import Process
from linkern.cli.benches.keeping import Kept, end_interrupted
from linkern.cli.benches.terminal import progress, say
from linkern.kernels.numpy.threads import cores
from linkern.testing import UsageError
from linkern.testing.report import terminal
from linkern.testing.target.sandbox import Sandbox, paths_in

__all__ = ["explain", "measure", "named"]

_CPU_ONLY = {"threads": "--threads", "plot_path": "--plot", "compared": "--compare"}


def measure(suite: Suite, options: dict[str, Any]) -> bool:
    """Measure and show, task by task; return False if a candidate is not right.

    Parameters
    ----------
    suite : Suite
        Tasks and peers on a CPU or a GPU.
    options : dict
        Of the command.

    Raises
    ------
    UsageError, ImportError, OSError, ValueError
        If an option cannot be used, or there is no GPU, before anything is measured.
    """
    if suite.name == "cuda":
        for name, flag in _CPU_ONLY.items():
            if options[name] is not None:
                msg = f"{flag} cannot be used with --device cuda."
                raise UsageError(msg)
    elif options["seconds"] is not None:
        msg = "--seconds needs --device cuda."
        raise UsageError(msg)
    if options["plot_path"] is not None:
        require_matplotlib()
    quick = options["quick"]
    tasks = _tasks(suite, options["tasks"], quick=quick)
    suite = _within(suite, options["seconds"], tasks, options)
    suite, names = _with_candidates(suite, options)
    peers = _peers(suite, names, tasks, quick=quick)
    compared = options["compared"]
    old = None if compared is None else read_run(compared, suite)
    sandbox = None
    if options["sandbox"]:
        files = paths_in(name.rpartition(":")[0] for name in options["peers"])
        sandbox = Sandbox(files, device=suite.name)
        sandbox.words([])  # refused before anything is measured
    console = terminal.wide_enough(Console())
    empty = _conditions(suite, options)
    say(console, *_header(empty, peers, tasks), *_spared(suite, peers, tasks, options))

    def show(part: Run) -> None:
        console.print(tables.task_table(part, part.tasks()[0]))
        say(console, *tables.remarks(part))

    patience = Patience(suite.contestant_seconds, suite.task_seconds)
    with progress() as tell:
        parts = run(
            [(task, _lengths(task, options["lengths"], quick=quick)) for task in tasks],
            peers,
            suite.quick_schedule if quick else suite.schedule,
            limits=suite.limits,
            threads=empty.threads,
            seed=options["seed"],
            attempts=1 if quick else 3,
            progress=tell,
            start=partial(Process, sandbox=sandbox, patience=patience),
            patience=patience,
        )
        kept = Kept(empty, options["json_path"], write_run, show)
        whole, complete = kept.through(parts)
    say(console, *legend(suite))
    if not complete:
        end_interrupted(options["json_path"])
    _show(console, whole, old)
    if options["plot_path"] is not None:
        draw_run(whole, options["plot_path"])
    judged = {peer.name for peer in suite.peers if peer.judged}
    return not any(row.remark for row in whole.rows if row.peer in judged)


def explain(suite: Suite, options: dict[str, Any]) -> None:
    """Print the plans of the tasks of a GPU; raise `UsageError` for a CPU."""
    if suite.name != "cuda":
        msg = "--explain needs --device cuda: a CPU has no cuts to choose from."
        raise UsageError(msg)
    quick = options["quick"]
    tasks = _tasks(suite, options["tasks"], quick=quick)
    asked = [(task, _lengths(task, options["lengths"], quick=quick)) for task in tasks]
    say(terminal.wide_enough(Console()), *explained(asked))


def named(option: str, names: Sequence[str], known: Sequence[str]) -> None:
    """Raise `UsageError` if an option has a name that is not known."""
    for name in names:
        if name not in known:
            msg = f'{option} must be one of {", ".join(known)}, got "{name}".'
            raise UsageError(msg)


def _tasks(suite: Suite, names: Sequence[str], *, quick: bool) -> tuple[Task, ...]:
    known = {task.name: task for task in suite.tasks}
    named("--task", names, [*known])
    default = [name for name, task in known.items() if task.default]
    chosen = names or (suite.quick_tasks if quick else default)
    return tuple(known[name] for name in dict.fromkeys(chosen))


def _lengths(task: Task, asked: Sequence[int], *, quick: bool) -> Sequence[int]:
    """Return the lengths of a task; on a GPU, one token takes as long after any."""
    if asked and (task.kind, task.device) != ("decode", "cuda"):
        return sorted({*asked})
    return task.quick if quick else task.lengths


def _peers(
    suite: Suite, names: Sequence[str], tasks: Sequence[Task], *, quick: bool
) -> tuple[Peer, ...]:
    known = {peer.name: peer for peer in suite.peers}
    named("--peer", names, [*known])
    functions = [peer.name for peer in suite.peers if peer.judged]
    for name in (*names, *functions):
        if suite.name == "cpu" and not _takes_part(known[name], tasks):
            needs = " and ".join(known[name].needs) or "nothing"
            msg = (
                f'--peer "{name}" has no part in {", ".join(t.name for t in tasks)}: '
                f"it needs {needs} installed, and does {', '.join(known[name].kinds)}."
            )
            raise UsageError(msg)
    chosen = names or (suite.quick_peers if quick else ())
    return tuple(
        peer
        for peer in suite.peers
        if not chosen or peer.name in chosen or peer.name.startswith(OURS)
    )


def _within(
    suite: Suite, seconds: float | None, tasks: Sequence[Task], options: dict[str, Any]
) -> Suite:
    """Return the suite with shares of some seconds for each task and contestant."""
    if seconds is None:
        return suite
    asked, quick = options["lengths"], options["quick"]
    each = seconds / sum(len(_lengths(task, asked, quick=quick)) for task in tasks)
    contestant = min(suite.contestant_seconds, each / 2)
    return replace(suite, contestant_seconds=contestant, task_seconds=each)


def _with_candidates(
    suite: Suite, options: dict[str, Any]
) -> tuple[Suite, Sequence[str]]:
    """Return the suite with the functions that `--peer` names, and the other names.

    Functions alone are measured beside all peers that a run has without them.
    """
    names = options["peers"]
    functions = [name for name in dict.fromkeys(names) if ":" in name]
    if not functions and options["framework"] is not None:
        msg = "--framework is for a function: --peer FILE.py:NAME."
        raise UsageError(msg)
    if functions and suite.name == "cuda":
        msg = f'--peer "{functions[0]}" cannot be used with --device cuda.'
        raise UsageError(msg)
    seed = secrets.randbits(31)
    new = [candidate_peer(name, options["framework"], seed) for name in functions]
    suite = replace(suite, peers=(*suite.peers, *new))
    if len(functions) == len({*names}):
        names = ()
    if suite.quick_peers:
        suite = replace(suite, quick_peers=(*suite.quick_peers, *functions))
    return suite, names


def _spared(
    suite: Suite, peers: Sequence[Peer], tasks: Sequence[Task], options: dict[str, Any]
) -> tuple[str, ...]:
    """Return a line about the installed peers that a quick run leaves out."""
    if not options["quick"] or options["peers"] or not suite.quick_peers:
        return ()
    others = [x.name for x in suite.peers if x not in peers and _takes_part(x, tasks)]
    if not others:
        return ()
    return (f"left out by --quick: {', '.join(others)}; --peer NAME takes one",)


def _takes_part(peer: Peer, tasks: Sequence[Task]) -> bool:
    return any(takes_part(peer, task) for task in tasks)


def _conditions(suite: Suite, options: dict[str, Any]) -> Run:
    """Return the run without rows: machine, commit and threads before it starts."""
    if suite.name == "cuda":
        return Run(suite, this_device(), _commit(), options["seed"], ())
    threads = options["threads"] or cores()
    return Run(suite, this_machine(), _commit(), options["seed"], (), threads)


def _header(
    conditions: Run, peers: Sequence[Peer], tasks: Sequence[Task]
) -> tuple[str, ...]:
    commit = f"commit {conditions.commit or 'unknown'}"
    if conditions.suite.name == "cpu":
        # The last line has the threads of this process, which only waits.
        lines = conditions.machine.lines()[:-1]
        return (*lines, f"{commit}; threads: {conditions.threads} for everybody")
    absent = [peer.name for peer in peers if not _takes_part(peer, tasks)]
    reasons = (f"{name}: not installed, or not for these tasks" for name in absent)
    suite = conditions.suite
    time = (
        f"a contestant is left out after {suite.contestant_seconds:g} s at a length, "
        f"compiling included, and those after {suite.task_seconds:g} s of all"
    )
    return (*conditions.machine.lines(), commit, time, *reasons)


def _show(console: Console, whole: Run, old: Run | None) -> None:
    """Show notes, goals, and the changes since an old run."""
    say(console, *tables.notes(whole))
    goals = tables.goals_table(whole)
    if goals is not None:
        console.print(goals)
    if old is not None:
        others = differences(old, whole)
        say(console, *(f"not the same machine or software: {x}" for x in others))
        console.print(tables.changes_table(old, changes(old, whole)))


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
