"""A run on a GPU as data: shares of copying, ratios to others, goals; and as a file."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from linkern.bench import files
from linkern.bench.cuda.machine import Accelerator
from linkern.bench.cuda.peers import peer_named
from linkern.bench.cuda.race import Row
from linkern.bench.cuda.tasks import COPIED, moved_bytes, task_named
from linkern.bench.peers import COPY, OURS
from linkern.bench.tasks import Task
from linkern.bench.timing import Spread

__all__ = ["GOALS", "Outcome", "Run", "outcomes", "read_run", "to_json", "write_run"]

SCHEMA = "linkern-bench-cuda-1"
# The share of copying to be reached, of the bytes that have to pass, at every length.
GOALS: Mapping[str, float] = MappingProxyType(
    {
        "causal": 0.70,
        "wide": 0.60,
        "float32": 0.45,
        "float32-wide": 0.45,
        "gradient": 0.45,
        "gradient-wide": 0.45,
        "decode-2048": 0.85,
    }
)


@dataclass(frozen=True)
class Run:
    """What was measured in one run.

    Parameters
    ----------
    machine : Accelerator
        On what.
    commit : str
        Of the code; empty if not known.
    seed : int
        As asked for.
    rows : tuple of Row
        Task by task, length by length.
    """

    machine: Accelerator
    commit: str
    seed: int
    rows: tuple[Row, ...]

    def row(self, task: str, length: int, peer: str) -> Row | None:
        """Return one row; None if there is none."""
        key = (task, length, peer)
        return next((x for x in self.rows if (x.task, x.length, x.peer) == key), None)

    def tasks(self) -> tuple[Task, ...]:
        """Return the tasks of the run, in order."""
        found = (task_named(name) for name in dict.fromkeys(r.task for r in self.rows))
        return tuple(task for task in found if task is not None)

    def lengths(self, task: str) -> tuple[int, ...]:
        """Return the lengths of a task, in order."""
        return tuple(sorted({row.length for row in self.rows if row.task == task}))

    def bandwidth(self, task: str, length: int) -> float | None:
        """Return the bytes per second of copying, read and written."""
        row = self.row(task, length, COPY)
        if row is None or row.seconds is None:
            return None
        return 2 * COPIED / row.seconds.median

    def share(self, row: Row) -> float | None:
        """Return the time of copying what has to pass, over the time taken."""
        task, bandwidth = task_named(row.task), self.bandwidth(row.task, row.length)
        if task is None or bandwidth is None or row.seconds is None:
            return None
        if row.peer == COPY:
            return None
        return moved_bytes(task, row.length) / bandwidth / row.seconds.median

    def fastest(self, task: str, length: int) -> Row | None:
        """Return the fastest other contestant that computes the same, all of it."""
        others = [
            (row.seconds.median, i, row)
            for i, row in enumerate(self.rows)
            if (row.task, row.length) == (task, length)
            and row.seconds is not None
            and row.peer != OURS
            and (peer := peer_named(row.peer)) is not None
            and peer.meaning == "attention"
        ]
        return min(others)[2] if others else None

    def ratio(self, row: Row) -> Spread | None:
        """Return how many times as long as linkern."""
        ours = self.row(row.task, row.length, OURS)
        if ours is None or ours.seconds is None or row.seconds is None:
            return None
        return row.seconds.over(ours.seconds)


@dataclass(frozen=True)
class Outcome:
    """What a run says of a goal at one length.

    Parameters
    ----------
    task : str
        Whose goal.
    length : int
        Tokens.
    goal : float
        The share of copying that is to be reached.
    reached : float or None
        What was reached; None if it was not measured.
    """

    task: str
    length: int
    goal: float
    reached: float | None

    @property
    def verdict(self) -> str:
        """Whether it was reached, as a word."""
        if self.reached is None:
            return "not measured"
        return "met" if self.reached >= self.goal else "missed"


def outcomes(run: Run) -> tuple[Outcome, ...]:
    """Return what a run says of every goal whose task it has."""
    found = []
    for task, goal in GOALS.items():
        for length in run.lengths(task):
            ours = run.row(task, length, OURS)
            share = None if ours is None else run.share(ours)
            found.append(Outcome(task, length, goal, share))
    return tuple(found)


def to_json(run: Run) -> dict[str, Any]:
    """Return a run as values that JSON can hold; times in seconds."""
    return {
        "schema": SCHEMA,
        "machine": asdict(run.machine),
        "commit": run.commit,
        "seed": run.seed,
        "rows": [
            {
                **asdict(row),
                "share_of_copying": run.share(row),
                "ratio_to_linkern": None
                if (ratio := run.ratio(row)) is None
                else asdict(ratio),
            }
            for row in run.rows
        ],
        "bytes_per_second": {
            task.name: {str(x): run.bandwidth(task.name, x) for x in lengths}
            for task in run.tasks()
            if (lengths := run.lengths(task.name))
        },
        "goals": [{**asdict(x), "verdict": x.verdict} for x in outcomes(run)],
    }


def write_run(run: Run, path: Path) -> None:
    """Write a run as JSON."""
    files.write(to_json(run), path)


def read_run(path: Path) -> Run:
    """Read a run.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If it was not written by `write_run`.
    """
    with files.read(path, SCHEMA, "linkern bench --device cuda --json") as found:
        rows = files.rows_as(Row, found["rows"])
        machine = Accelerator(**found["machine"])
        return Run(machine, found["commit"], found["seed"], rows)
