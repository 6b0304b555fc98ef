"""Notes on generating for a terminal, and the published figures."""

from rich.table import Table

from linkern.bench.generation.published_figures import SOURCE, TABLES
from linkern.bench.generation.results import crossovers, exponents, longest
from linkern.bench.records import Run
from linkern.bench.tables import new_table
from linkern.bench.tasks import Task

__all__ = ["generation_notes", "published_table"]


def generation_notes(run: Run, task: Task) -> tuple[str, ...]:
    """Return lines for below the table: exponents and crossovers."""
    lines = []
    rows = [row for row in run.rows if row.task == task.name]
    counts = sorted({len(row.spans) for row in rows if row.sampled})
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
    columns = (">images/s", ">linear does", ">CPU s/image", ">GPU s/image")
    table = new_table(SOURCE, "images", "method", *columns)
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
