"""``linkern list``: operators and checks."""

import click
from rich.console import Console
from rich.table import Table

from linkern.testing import CHECKS, OPERATORS, Operator
from linkern.testing.report import terminal

__all__ = ["list_"]


def _described(operator: Operator) -> str:
    """Return the equation, scale and inputs of an operator."""
    if operator.feature_map:
        return operator.summary
    scale = f"; scale {operator.scale}" if operator.has_scale else ""
    return f"{operator.summary}{scale}; inputs {' '.join(operator.names)}"


@click.command("list")
def list_() -> None:
    """Show the operators and the checks."""
    console = terminal.wide_enough(Console())
    for title, rows in (
        ("operators", [(name, _described(o)) for name, o in OPERATORS.items()]),
        ("checks", [(c.name, c.statement) for c in CHECKS.values()]),
    ):
        table = Table(title=title, title_justify="left", show_header=False)
        table.add_column(no_wrap=True)
        for row in rows:
            table.add_row(*row)
        console.print(table)
