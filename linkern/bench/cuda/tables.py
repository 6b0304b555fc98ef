"""A run on a GPU as tables for a terminal."""

from rich.table import Table

from linkern.bench.cuda.race import Row
from linkern.bench.cuda.runs import Run, outcomes
from linkern.bench.peers import COPY, OURS
from linkern.bench.tables import seconds_text
from linkern.bench.tasks import Task

__all__ = ["NOTES", "goals_table", "remarks", "task_table"]

NOTES = (
    "time: of one call, median (lowest-highest); by its own clock",
    "of copying: time of copying the bytes that have to pass once / time",
    "error: largest / largest number of the float64 answer",
    "by: graph, one launch of many calls; events, call by call, gaps included",
)


def task_table(run: Run, task: Task) -> Table:
    """Return what was measured for one task."""
    shape = f"B = {task.batch}, H = {task.heads}, K = V = {task.dim}, {task.dtype}"
    table = Table(title=f"{task.name}: {task.summary}; {shape}", title_justify="left")
    table.add_column("tokens", justify="right", no_wrap=True)
    table.add_column("contestant", no_wrap=True)
    for name in ("time", "of copying", f"time / {OURS}", "error", "by"):
        table.add_column(name, justify="right", no_wrap=True)
    for length in run.lengths(task.name):
        for row in run.rows:
            if (row.task, row.length) == (task.name, length) and row.peer != COPY:
                table.add_row(*_cells(run, row))
        bandwidth = run.bandwidth(task.name, length)
        rate = "" if bandwidth is None else f"{bandwidth / 1e9:.0f} GB/s"
        table.add_row("limit", "copying", rate)
        table.add_section()
    return table


def _cells(run: Run, row: Row) -> tuple[str, ...]:
    if row.seconds is None:
        return (str(row.length), row.peer, row.remark.partition(":")[0].split()[0])
    share, ratio = run.share(row), run.ratio(row)
    return (
        str(row.length),
        row.peer,
        seconds_text(row.seconds),
        "" if share is None else f"{100 * share:.0f} %",
        "" if ratio is None else f"{ratio.median:.3g}",
        "" if row.error is None else f"{row.error:.0e}",
        row.timed_by.partition(":")[0],
    )


def remarks(run: Run) -> tuple[str, ...]:
    """Return why somebody was not timed, or not by a graph."""
    said = ((row, row.remark or row.timed_by.partition(": ")[2]) for row in run.rows)
    return tuple(f"{x.task}, {x.length}: {x.peer} {text}" for x, text in said if text)


def goals_table(run: Run) -> Table:
    """Return which goals were reached, and beside whom."""
    table = Table(title="goals: the share of copying", title_justify="left")
    for name in ("task", "tokens", "at least", "reached", "fastest peer", "verdict"):
        right = name in ("tokens", "at least", "reached")
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    for x in outcomes(run):
        reached = "-" if x.reached is None else f"{100 * x.reached:.0f} %"
        goal = f"{100 * x.goal:.0f} %"
        peer = _beside(run, x.task, x.length)
        table.add_row(x.task, str(x.length), goal, reached, peer, x.verdict)
    return table


def _beside(run: Run, task: str, length: int) -> str:
    """Return how many times as long the fastest other takes."""
    other = run.fastest(task, length)
    ratio = None if other is None else run.ratio(other)
    if other is None or ratio is None:
        return "-"
    return f"{ratio.median:.3g} times as long ({other.peer})"
