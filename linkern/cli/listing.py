"""``linkern list``: what can be judged, and by which laws."""

import click
from rich.console import Console
from rich.table import Table

from linkern.testing import CHECKS, OPERATORS, rendering

__all__ = ["list_"]


@click.command("list")
def list_() -> None:
    """Show the operators and the checks."""
    console = rendering.wide_enough(Console())
    for title, rows in (
        ("operators", [(o.name, o.summary) for o in OPERATORS.values()]),
        ("checks", [(c.name, c.statement) for c in CHECKS.values()]),
    ):
        table = Table(title=title, title_justify="left", show_header=False)
        table.add_column(no_wrap=True)
        for row in rows:
            table.add_row(*row)
        console.print(table)
