"""``linkern explain``: one check, or one operator, for the author of a kernel."""

import sys
import textwrap

import click

from linkern.adapters.catalogue import judged
from linkern.cli.columns import columns
from linkern.cli.options import EXIT_USAGE
from linkern.testing import CHECKS, OPERATORS, UsageError
from linkern.testing.report.explanation import Explanation, explain

__all__ = ["explain_"]

# Code and commands to copy.
_UNBROKEN = ("alone", "reference", "verify")


@click.command("explain")
@click.argument("name", metavar="CHECK|OPERATOR")
def explain_(name: str) -> None:
    """Explain a check or an operator.

    Of a check: the law, when it applies, the defects that it reaches, the source of a
    kernel that breaks it, and how to mend one. Of an operator: its equation, inputs,
    state and laws.

    Exit code: 0; 2 there is neither a check nor an operator of that name.
    """
    try:
        explanation = explain(name)
    except UsageError as error:
        click.echo(f"linkern: {error}", err=True)
        sys.exit(EXIT_USAGE)
    click.echo(_text(explanation))


def _text(explanation: Explanation) -> str:
    """Return an explanation as text; of an operator, with what was judged as it."""
    name, rows = explanation.name, [*explanation.rows]
    if name in CHECKS:
        kind = "a check"
    else:
        kind = "an operator"
        published = judged(OPERATORS[name].name)
        rows.append(("judged", ", ".join(published) or "no published kernel yet"))
    parts = [f"{click.style(name, bold=True)}, {kind}", columns(rows, _UNBROKEN)]
    if explanation.source:
        source = textwrap.indent(explanation.source, "    ")
        parts.append(f"The kernel that breaks it:\n\n{source}\n")
    return "\n\n".join(parts)
