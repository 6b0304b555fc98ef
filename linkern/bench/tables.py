"""A run as tables for a terminal."""

from rich.table import Table

from linkern.bench.goals import Outcome, outcomes
from linkern.bench.peers import LIMITS, OURS
from linkern.bench.race import FOREIGN, Row
from linkern.bench.runs import SOFTMAX, Run
from linkern.bench.tasks import Task
from linkern.bench.timing import Spread

__all__ = ["goals_table", "notes", "remarks", "task_table"]

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def task_table(run: Run, task: Task) -> Table:
    """Return what was measured for one task."""
    each = ", for each token" if task.kind == "decode" else ""
    shape = f"B = {task.batch}, H = {task.heads}, K = V = {task.dim}, {task.dtype}"
    threads = task.threads or run.threads
    title = f"{task.name}: {task.summary}; {shape}; threads: {threads}{each}"
    table = Table(title=title, title_justify="left")
    table.add_column("tokens", justify="right", no_wrap=True)
    table.add_column("contestant", no_wrap=True)
    for name in ("time", f"time / {OURS}", "of GEMM", "floor", "extra", "error"):
        table.add_column(name, justify="right", no_wrap=True)
    for length in run.lengths(task.name):
        for row in run.contestants(task.name, length):
            table.add_row(*_cells(run, row))
        table.add_row("limits", *_limits(run, task.name, length))
        table.add_section()
    return table


def remarks(run: Run) -> tuple[str, ...]:
    """Return why somebody was not timed."""
    return tuple(
        f"{row.task}, {row.length}: {row.peer} {row.remark}"
        for row in run.rows
        if row.remark
    )


def _cells(run: Run, row: Row) -> tuple[str, ...]:
    if row.seconds is None:
        return (str(row.length), row.peer, row.remark.partition(":")[0].split()[0])
    ratio, share, floor = run.ratio(row), run.fraction(row), run.floor(row)
    return (
        str(row.length),
        row.peer,
        seconds_text(row.seconds) + ("" if row.foreign <= FOREIGN else " !"),
        "" if ratio is None else _number(ratio.median),
        "" if share is None else f"{100 * share.median:.0f} %",
        "" if floor is None else f"{100 * floor:.0f} %",
        extra_text(row),
        "" if row.error is None else f"{row.error:.0e}",
    )


def _limits(run: Run, task: str, length: int) -> tuple[str, str]:
    peak, bandwidth = run.peak(task, length), run.bandwidth(task, length)
    shown = [
        f"{x.median / 1e9:.0f} {unit}"
        for x, unit in ((peak, "GFLOP/s"), (bandwidth, "GB/s"))
        if x is not None
    ]
    return ("GEMM, copying", ", ".join(shown))


def goals_table(run: Run) -> Table | None:
    """Return which goals were reached; None if the run has none of their tasks."""
    found = outcomes(run)
    if not found:
        return None
    table = Table(title="goals", title_justify="left")
    for name in ("task", "tokens", "goal", "reached", "verdict"):
        right = name in ("tokens", "reached")
        wide = name != "goal"
        table.add_column(name, justify="right" if right else "left", no_wrap=wide)
    for outcome in found:
        table.add_row(*_goal_cells(outcome))
    return table


def _goal_cells(outcome: Outcome) -> tuple[str, ...]:
    length = "all" if outcome.length is None else str(outcome.length)
    goal = outcome.goal
    return (goal.task, length, goal.text(), outcome.reached(), outcome.verdict)


def notes(run: Run) -> tuple[str, ...]:
    """Return what has to be said below the tables."""
    lines = [
        "time: median (lowest-highest) of the rounds",
        "of GEMM: operations of the chunk form at 64 / time / measured GEMM peak",
        "floor: time to copy inputs and outputs once / time",
        "extra: most memory beside both during one call, ~ by growth of the process",
        "error: largest / largest number of the float64 answer",
    ]
    if any(row.foreign > FOREIGN for row in run.rows):
        lines.append("! others used more than 8 % of the processor meanwhile")
    limits = {limit.name for limit in LIMITS}
    names = [x for x in dict.fromkeys(row.peer for row in run.rows) if x not in limits]
    for task in run.tasks():
        powers = {peer: run.exponent(task.name, peer) for peer in names}
        shown = [f"{p:.2f} {peer}" for peer, p in powers.items() if p is not None]
        if shown:
            lines.append(f"{task.name}: time grows like T^p, p = {', '.join(shown)}")
        if run.row(task.name, run.lengths(task.name)[0], SOFTMAX) is not None:
            first = run.crossover(task.name)
            where = "at no length measured" if first is None else f"from {first} on"
            lines.append(f"{task.name}: {OURS} takes less than {SOFTMAX} {where}")
    return tuple(lines)


def seconds_text(spread: Spread) -> str:
    """Return seconds in a fitting unit.

    Examples
    --------
    >>> seconds_text(Spread(0.0123, 0.012, 0.013, 5))
    '12.3 (12-13) ms'
    """
    scale, unit = next(
        ((x, name) for x, name in _UNITS if spread.median >= x), _UNITS[-1]
    )
    middle, low, high = (
        _number(x / scale) for x in (spread.median, spread.low, spread.high)
    )
    return f"{middle} ({low}-{high}) {unit}"


def extra_text(row: Row) -> str:
    """Return the extra memory of a row."""
    if row.extra_bytes is None:
        return "?"
    about = "" if row.extra_by == "tracemalloc" else "~"
    return f"{about}{row.extra_bytes / 2**20:.1f} MiB"


def _number(x: float) -> str:
    return f"{x:.0f}" if x >= 100 else f"{x:.3g}"
