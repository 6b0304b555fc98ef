"""Tables for a terminal: generating, and the published figures."""

from rich.table import Table

from linkern.bench.generation.published_figures import SOURCE, TABLES
from linkern.bench.generation.results import crossovers, exponents, longest, sampled
from linkern.bench.records import Row, Run
from linkern.bench.tables import new_table, number
from linkern.bench.tasks import Task
from linkern.bench.timing import Spread

__all__ = ["generation_notes", "generation_table", "published_table"]


def generation_table(run: Run, task: Task) -> Table:
    """Return all rows of one setting."""
    columns = f"seconds|tokens/s|time / {task.baseline}|held|peak"
    order = f"tokens|contestant|{columns}"
    table = new_table(task.summary, "contestant", f"tokens|{columns}", order)
    for length in run.lengths(task.name):
        for row in run.peers(task.name, length):
            table.add_row(*_cells(run, row))
        table.add_section()
    return table


def _cells(run: Run, row: Row) -> tuple[str, ...]:
    ratio, seconds = run.ratio(row), row.seconds
    assert seconds is not None
    peak = "?" if row.extra_bytes is None else _bytes(row.extra_bytes)
    return (
        str(row.length),
        row.summary,
        _spread(seconds) + (" *" if sampled(row) else ""),
        number(row.length / seconds.median),
        "" if ratio is None else _spread(ratio),
        _bytes(row.held_bytes or 0),
        peak if row.extra_by == "tracemalloc" else f"~{peak}",
    )


def generation_notes(run: Run, task: Task) -> tuple[str, ...]:
    """Return lines for below the table: meanings of columns, exponents, crossovers."""
    lines = [
        (
            "median (lowest-highest) of the rounds; held: kept between tokens; "
            "peak: preparation and last token, ~ by the growth of the process; "
            "exponents and crossings from the lowest time of each span"
        )
    ]
    rows = [row for row in run.rows if row.task == task.name]
    counts = sorted({len(row.spans) for row in rows if sampled(row)})
    if counts:
        counted = " or ".join(map(str, counts))
        lines.append(
            f"* from {counted} sampled prefixes, summed along the line between them"
        )
    for name, power in exponents(run, task).items():
        if power is not None:
            length = longest(run, task)[name].length
            lines.append(
                f"{name}: time of a token grows like its position to the "
                f"{power:+.2f}, up to {length}"
            )
    for name, first in crossovers(run, task).items():
        where = "at no length measured" if first is None else f"from {first} on"
        lines.append(f"{task.baseline} takes less than {name} {where}")
    return tuple(lines)


def published_table() -> Table:
    """Return the published figures as a table, labelled as quoted."""
    columns = "images/s|linear does|CPU s/image|GPU s/image"
    table = new_table(SOURCE, "images|method", columns)
    for published in TABLES:
        for row in published.rows:
            ratio = published.ratio(row)
            table.add_row(
                f"{published.name}, {published.length} tokens",
                row.method,
                f"{row.images_per_second:g}",
                f"{ratio:.0f}x" if ratio != 1 else "",
                f"{row.cpu_seconds:g}",
                f"{row.gpu_seconds:g}",
            )
        table.add_section()
    return table


def _spread(spread: Spread) -> str:
    if spread.low == spread.high:
        return number(spread.median)
    low, high = number(spread.low), number(spread.high)
    return f"{number(spread.median)} ({low}-{high})"


def _bytes(count: int) -> str:
    if count >= 2**20:
        return f"{number(count / 2**20)} MiB"
    return f"{count / 2**10:.0f} KiB"
