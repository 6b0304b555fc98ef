"""Show the runs of `linkern bench` under `docs/benchmarks/` on a page of their own.

    python tools/speed_table.py            # write docs/measured.md
    python tools/speed_table.py --check    # only compare with it

No number is typed in: all come from the files that ``linkern bench --json`` wrote.
"""

import sys
from pathlib import Path

from pages import write_or_compare
from rich.table import Table

from linkern.bench import tables
from linkern.bench.cpu import CPU
from linkern.bench.files import read_run
from linkern.bench.legend import legend

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "measured.md"
RUNS = "speed-*.json"

INTRODUCTION = """# What was measured

<!-- Written by tools/speed_table.py; do not edit. -->

The runs of `linkern bench` under `docs/benchmarks/`, as it shows them itself;
[](speed.md) says what was measured how, and why goals are missed where they are.
"""


def page() -> str:
    """Return the page."""
    runs = [(path, read_run(path, CPU)) for path in (DOCS / "benchmarks").glob(RUNS)]
    # The whole table first.
    runs.sort(key=lambda item: (-len(item[1].rows), item[0].name))
    parts = [INTRODUCTION]
    for path, run in runs:
        parts.append(f"\n## Commit {run.commit}\n\n`docs/benchmarks/{path.name}`:\n")
        # The last line is about threads of the process that only waited.
        parts += [f"- {line}\n" for line in run.machine.lines()[:-1]]
        parts.append(f"- {run.threads} threads for everybody\n")
        for task in run.tasks():
            parts.append(
                f"\n### {task.name}\n\n{markdown(tables.task_table(run, task))}"
            )
        goals = tables.goals_table(run)
        if goals is not None:
            parts.append(f"\n### Goals\n\n{markdown(goals)}")
        parts.append("\n")
        parts += [f"- {line}\n" for line in (*legend(run.suite), *tables.notes(run))]
    return "".join(parts)


def markdown(table: Table) -> str:
    """Return a table for a terminal as one of Markdown, under its title."""
    title = "" if table.title in (None, "goals") else f"{table.title}\n\n"
    columns = [
        [str(column.header), *map(str, column.cells)] for column in table.columns
    ]
    rows = [*zip(*columns, strict=True)]
    rows.insert(1, ("---",) * len(columns))
    return title + "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    sys.exit(write_or_compare(PAGE, page, __doc__))
