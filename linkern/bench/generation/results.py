"""Results of generating: exponents of single tokens, crossovers of sums, and files."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from linkern.bench import files
from linkern.bench.generation.published_figures import SOURCE, TABLES
from linkern.bench.records import Row, Run
from linkern.bench.scaling import crossover, exponent
from linkern.bench.tasks import Task

__all__ = ["crossovers", "exponents", "to_json", "write_json"]

# Below this position a token costs the calls of functions, whatever it attends to.
_FIT_FROM = 64


def longest(run: Run, task: Task) -> dict[str, Row]:
    """Return each peer at the greatest length it was measured at."""
    rows = sorted(
        (row for row in run.rows if row.task == task.name), key=lambda row: row.length
    )
    return {row.peer: row for row in rows}


def exponents(run: Run, task: Task) -> dict[str, float | None]:
    """Return `p` of ``seconds per token ~ position^p``, from position 64 on."""
    powers = {}
    for name, row in longest(run, task).items():
        points = [
            ((start + stop + 1) / 2, seconds / (stop - start))
            for (start, stop), seconds in zip(row.spans, row.span_seconds, strict=True)
            if (start + stop + 1) / 2 >= _FIT_FROM
        ]
        powers[name] = exponent([x for x, _ in points], [y for _, y in points])
    return powers


def crossovers(run: Run, task: Task) -> dict[str, int | None]:
    """Return from which length on the baseline takes less than other states.

    Peers that recompute were timed at single tokens and are left out.
    """
    rows = longest(run, task)
    ours = rows.get(task.baseline)
    return {
        name: crossover(ours.spans, ours.span_seconds, row.span_seconds)
        for name, row in rows.items()
        if ours is not None and row is not ours and row.spans == ours.spans
    }


def to_json(run: Run) -> dict[str, Any]:
    """Return a run as values that JSON can hold: times in seconds, memory in bytes."""
    return {
        "schema": run.suite.schema,
        "machine": asdict(run.machine),
        "settings": [_setting(run, task) for task in run.tasks()],
        "quoted": {"source": SOURCE, "tables": [asdict(x) for x in TABLES]},
    }


def _setting(run: Run, task: Task) -> dict[str, Any]:
    return {
        "setting": task.summary,
        "baseline": task.baseline,
        "measured": [_row(run, row) for row in run.rows if row.task == task.name],
        "exponents": exponents(run, task),
        "crossovers": crossovers(run, task),
    }


def _row(run: Run, row: Row) -> dict[str, Any]:
    ratio, seconds = run.ratio(row), row.seconds
    assert seconds is not None
    return {
        "contestant": row.peer,
        "summary": row.summary,
        "length": row.length,
        "seconds": asdict(seconds),
        "spans": row.spans,
        "span_seconds": row.span_seconds,
        "sampled": row.sampled,
        "held_bytes": row.held_bytes,
        "peak_bytes": row.extra_bytes,
        "peak_by": row.extra_by,
        "tokens_per_second": row.length / seconds.median,
        "ratio_to_baseline": None if ratio is None else asdict(ratio),
    }


def write_json(run: Run, path: Path) -> None:
    """Write a run as JSON."""
    files.write(to_json(run), path)
