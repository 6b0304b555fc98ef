"""Runs as files, and what changed from one to another beyond noise."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from linkern.bench import files
from linkern.bench.goals import outcomes
from linkern.bench.machine import Machine
from linkern.bench.peers import LIMITS
from linkern.bench.race import Row
from linkern.bench.runs import Run
from linkern.bench.timing import Spread

__all__ = ["Change", "changes", "differences", "read_run", "to_json", "write_run"]

SCHEMA = "linkern-bench-1"
# Rounds below which lowest and highest say nothing about noise.
_FEWEST = 3
_SAME = ("processor", "cores", "system", "python", "blas", "libraries")


def to_json(run: Run) -> dict[str, Any]:
    """Return a run as values that JSON can hold.

    Parameters
    ----------
    run : Run
        What was measured.

    Returns
    -------
    dict
        Times in seconds, memory in bytes.
    """
    return {
        "schema": SCHEMA,
        "machine": asdict(run.machine),
        "commit": run.commit,
        "threads": run.threads,
        "seed": run.seed,
        "rows": [_row(run, row) for row in run.rows],
        "tasks": {
            task.name: {
                "summary": task.summary,
                "exponents": {
                    peer: run.exponent(task.name, peer)
                    for peer in dict.fromkeys(
                        r.peer for r in run.rows if r.task == task.name
                    )
                },
                "overtakes_softmax_at": run.crossover(task.name),
            }
            for task in run.tasks()
        },
        "goals": [
            {
                "task": x.goal.task,
                "tokens": x.length,
                "goal": x.goal.text(),
                "reached": x.value,
                "compared_with": x.peer,
                "verdict": x.verdict,
            }
            for x in outcomes(run)
        ],
    }


def _row(run: Run, row: Row) -> dict[str, Any]:
    ratio, share = run.ratio(row), run.fraction(row)
    return {
        **asdict(row),
        "ratio_to_linkern": None if ratio is None else asdict(ratio),
        "fraction_of_gemm_peak": None if share is None else asdict(share),
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
    with files.read(path, SCHEMA, "linkern bench --json") as found:
        return Run(
            Machine(**found["machine"]),
            found["commit"],
            found["threads"],
            found["seed"],
            files.rows_as(Row, found["rows"]),
        )


@dataclass(frozen=True)
class Change:
    """How one contestant's time differs between two runs.

    Parameters
    ----------
    row : Row
        Of the new run.
    seconds : Spread
        New time over old time.
    relative : Spread or None
        The same of times in units of the product of two matrices, measured in the same
        rounds: that a machine was slower altogether is divided out.
    """

    row: Row
    seconds: Spread
    relative: Spread | None

    @property
    def verdict(self) -> str:
        """What is beyond noise: "faster", "slower", or empty.

        The ranges of the two relative times, lowest to highest over the rounds, do not
        overlap. Fewer than three rounds are no range.
        """
        judged = self.relative or self.seconds
        if judged.rounds < _FEWEST:
            return ""
        # The range of a quotient lies on one side of 1 just where the ranges are apart.
        return "slower" if judged.low > 1 else "faster" if judged.high < 1 else ""


def changes(old: Run, new: Run) -> tuple[Change, ...]:
    """Return how the times differ of all that both runs have."""
    limits = {peer.name for peer in LIMITS}
    found = []
    for row in new.rows:
        before = old.row(row.task, row.length, row.peer)
        if before is None or before.seconds is None or row.seconds is None:
            continue
        now, then = new.relative(row), old.relative(before)
        if row.peer in limits or now is None or then is None:
            relative = None
        else:
            relative = now.over(then)
        found.append(Change(row, row.seconds.over(before.seconds), relative))
    return tuple(found)


def differences(old: Run, new: Run) -> tuple[str, ...]:
    """Return in what the two runs differ that is not the code, as lines of text."""
    lines = []
    for name in _SAME:
        then, now = getattr(old.machine, name), getattr(new.machine, name)
        if then != now:
            lines.append(f"{name}: {_plain(then)} then, {_plain(now)} now")
    if old.threads != new.threads:
        lines.append(f"threads: {old.threads} then, {new.threads} now")
    return tuple(lines)


def _plain(x: Any) -> str:
    if isinstance(x, Mapping):
        return ", ".join(f"{name} {version}" for name, version in x.items())
    return str(x)
