"""``linkern list``: operators, checks and declarations."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import fields

import click

from linkern.cli.columns import columns
from linkern.cli.options import EXIT_USAGE
from linkern.testing import CHECKS, OPERATORS, Contract
from linkern.testing.spec.declarations import DECLARATIONS, as_text, nearest

__all__ = ["list_"]

Rows = Iterator[tuple[str, str]]


def _operators() -> Rows:
    for name, operator in OPERATORS.items():
        scale = f"; scale {operator.scale}" if operator.has_scale else ""
        inputs = " ".join(operator.names)
        yield name, f"{operator.summary}{scale}; inputs {inputs}"


def _checks() -> Rows:
    for check in CHECKS.values():
        yield check.name, check.statement


def _declarations() -> Rows:
    defaults = {field.name: field.default for field in fields(Contract)}
    for key, one in DECLARATIONS.items():
        default = defaults[key]
        undeclared = "" if default in (None, ()) else f" Default {as_text(default)}."
        words = f"`--declare {key}={one.example}` if {one.when}."
        yield key, f"{words} Values: {one.values.text}.{undeclared}"


_LISTS: dict[str, Callable[[], Rows]] = {
    "operators": _operators,
    "checks": _checks,
    "declarations": _declarations,
}
_PLAIN = ("operators", "checks")


@click.command("list")
@click.argument("what", required=False, metavar=f"[{'|'.join(_LISTS)}]")
def list_(what: str | None) -> None:
    """Show the operators, the checks or the declarations.

    Without an argument: operators and checks. `linkern explain NAME` says more about
    one of them.
    """
    if what is not None and what not in _LISTS:
        click.echo(f"linkern: {nearest('list', what, _LISTS)}", err=True)
        if what in CHECKS or what in OPERATORS:
            click.echo(f"`linkern explain {what}` explains it.", err=True)
        sys.exit(EXIT_USAGE)
    names = _PLAIN if what is None else (what,)
    for name in names:
        click.echo(f"{click.style(name, bold=True)}\n")
        click.echo(columns(_LISTS[name]()) + "\n")
