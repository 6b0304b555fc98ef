"""Tables for a terminal: rows of a run, and outcomes of its goals."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from rich.table import Table

from linkern.bench.comparison import Change
from linkern.bench.goals import Outcome, outcomes
from linkern.bench.peers import SOFTMAX
from linkern.bench.records import FOREIGN, Row, Run
from linkern.bench.tasks import OURS, Task
from linkern.bench.timing import Spread

__all__ = [
    "changes_table",
    "goals_table",
    "new_table",
    "notes",
    "number",
    "remarks",
    "seconds_text",
    "task_table",
]

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
# Name of a column, and the text of a row that was timed.
Columns = Mapping[str, Callable[[Run, Row, Spread], str]]


def new_table(title: str, *columns: str) -> Table:
    """Return an empty table; ">" aligns a column to the right, only "goal" wraps."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        name = column.removeprefix(">")
        right = name != column
        table.add_column(
            name, justify="right" if right else "left", no_wrap=name != "goal"
        )
    return table


def _ratio(run: Run, row: Row, _: Spread) -> str:
    ratio = run.ratio(row)
    return "" if ratio is None else number(ratio.median)


def _fraction(run: Run, row: Row, _: Spread) -> str:
    share = run.fraction(row)
    return "" if share is None else f"{100 * share.median:.0f} %"


def _floor(run: Run, row: Row, _: Spread) -> str:
    share = run.floor(row)
    return "" if share is None else f"{100 * share:.0f} %"


def _extra(_run: Run, row: Row, _: Spread) -> str:
    if row.extra_bytes is None:
        return "?"
    about = "" if row.extra_by == "tracemalloc" else "~"
    return f"{about}{row.extra_bytes / 2**20:.1f} MiB"


def _error(_run: Run, row: Row, _: Spread) -> str:
    return "" if row.error is None else f"{row.error:.0e}"


def _time(_run: Run, row: Row, seconds: Spread) -> str:
    return seconds_text(seconds) + ("" if row.foreign <= FOREIGN else " !")


_COLUMNS: Mapping[str, Columns] = MappingProxyType(
    {
        "cpu": {
            "time": _time,
            f"time / {OURS}": _ratio,
            "of GEMM": _fraction,
            "floor": _floor,
            "extra": _extra,
            "error": _error,
        },
        "cuda": {
            "time": _time,
            "of copying": _floor,
            f"time / {OURS}": _ratio,
            "error": _error,
            "by": lambda _run, row, _: row.timed_by.partition(":")[0],
        },
        "generation": {
            "seconds": lambda _, row, x: _spread(x) + (" *" if row.sampled else ""),
            "tokens/s": lambda _, row, x: number(row.length / x.median),
            "time / baseline": lambda run, row, _: _spread(run.ratio(row)),
            "held": lambda _run, row, _: _bytes(row.held_bytes),
            "peak": lambda _run, row, _: (
                ("" if row.extra_by == "tracemalloc" else "~") + _bytes(row.extra_bytes)
            ),
        },
    }
)


def task_table(run: Run, task: Task) -> Table:
    """Return all rows of one task."""
    columns = _COLUMNS[run.suite.name]
    names = (name.replace(OURS, "baseline") for name in columns)
    right = (">" + name.replace("baseline", task.baseline) for name in names)
    table = new_table(_title(run, task), ">tokens", "contestant", *right)
    limits = {"cpu": ("limits", "GEMM, copying"), "cuda": ("limit", "copying")}
    for length in run.lengths(task.name):
        for row in run.peers(task.name, length):
            name = row.summary if task.kind == "generate" else row.peer
            cells = (str(row.length), name)
            if row.seconds is None:
                table.add_row(*cells, row.remark.partition(":")[0].split()[0])
            else:
                shown = (cell(run, row, row.seconds) for cell in columns.values())
                table.add_row(*cells, *shown)
        if run.suite.name in limits:
            table.add_row(*limits[run.suite.name], _limits(run, task.name, length))
        table.add_section()
    return table


def _title(run: Run, task: Task) -> str:
    if task.kind == "generate":
        return task.summary
    shape = f"B = {task.batch}, H = {task.heads}, K = V = {task.dim}, {task.dtype}"
    title = f"{task.name}: {task.summary}; {shape}"
    if run.suite.name == "cuda":
        return title
    each = ", for each token" if task.kind == "decode" else ""
    return f"{title}; threads: {task.threads or run.threads}{each}"


def _limits(run: Run, task: str, length: int) -> str:
    peak, bandwidth = run.peak(task, length), run.bandwidth(task, length)
    return ", ".join(
        f"{x.median / 1e9:.0f} {unit}"
        for x, unit in ((peak, "GFLOP/s"), (bandwidth, "GB/s"))
        if x is not None
    )


def remarks(run: Run) -> tuple[str, ...]:
    """Return lines about the rows that were not timed, or not by a graph."""
    reasons = ((row, row.remark or row.timed_by.partition(": ")[2]) for row in run.rows)
    return tuple(
        f"{x.task}, {x.length}: {x.peer} {text}" for x, text in reasons if text
    )


def goals_table(run: Run) -> Table | None:
    """Return the outcomes of all goals; None if a run on a CPU has none of them."""
    results = outcomes(run)
    if run.suite.name == "cuda":
        return _shares_of_copying(run, results)
    if not results:
        return None
    table = new_table("goals", "task", ">tokens", "goal", ">reached", "verdict")
    for x in results:
        length = "all" if x.length is None else str(x.length)
        table.add_row(x.goal.task, length, x.goal.text(), x.reached(), x.verdict)
    return table


def _shares_of_copying(run: Run, results: tuple[Outcome, ...]) -> Table:
    columns = ("task", ">tokens", ">at least", ">reached", "fastest peer", "verdict")
    table = new_table("goals: the share of copying", *columns)
    for x in results:
        assert x.length is not None
        shares = (x.goal.least, x.value)
        least, reached = ("-" if y is None else f"{100 * y:.0f} %" for y in shares)
        other = run.fastest(x.goal.task, x.length)
        ratio = None if other is None else run.ratio(other)
        beside = "-"
        if other is not None and ratio is not None:
            beside = f"{ratio.median:.3g} times as long ({other.peer})"
        table.add_row(x.goal.task, str(x.length), least, reached, beside, x.verdict)
    return table


def notes(run: Run) -> tuple[str, ...]:
    """Return lines for below all tables: the scaling of a run on a CPU."""
    lines: list[str] = []
    if run.suite.name == "cuda":
        return ()
    limits = {limit.name for limit in run.suite.limits}
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


def changes_table(old: Run, changes: tuple[Change, ...]) -> Table:
    """Return the changes since an old run."""
    title = (
        f"since commit {old.commit or 'unknown'}; faster, slower: the ranges of "
        "time / GEMM time do not overlap, 3 rounds or more"
    )
    columns = ("task", "tokens", "contestant", "time", "time / GEMM time", "verdict")
    table = new_table(title, *columns)
    for x in changes:
        relative = "" if x.relative is None else f"x {x.relative.median:.2f}"
        cells = (str(x.row.length), x.row.peer, f"x {x.seconds.median:.2f}", relative)
        table.add_row(x.row.task, *cells, x.verdict)
    if not changes:
        table.add_row("nothing was measured in both runs")
    return table


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
        number(x / scale) for x in (spread.median, spread.low, spread.high)
    )
    return f"{middle} ({low}-{high}) {unit}"


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return ""
    if spread.low == spread.high:
        return number(spread.median)
    low, high = number(spread.low), number(spread.high)
    return f"{number(spread.median)} ({low}-{high})"


def _bytes(count: int | None) -> str:
    if count is None:
        return "?"
    if count >= 2**20:
        return f"{number(count / 2**20)} MiB"
    return f"{count / 2**10:.0f} KiB"


def number(x: float) -> str:
    """Return three digits of a number, and all before the point."""
    return f"{x:.0f}" if x >= 100 else f"{x:.3g}"
