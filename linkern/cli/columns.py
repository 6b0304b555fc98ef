"""Labelled texts for a terminal, wrapped at its width."""

import shutil
import sys
import textwrap
from collections.abc import Iterable

import click

__all__ = ["columns"]

WIDTH = 80
WIDEST = 100


def columns(rows: Iterable[tuple[str, str]], unbroken: Iterable[str] = ()) -> str:
    """Return rows of a label and a text, labels in bold.

    Parameters
    ----------
    rows : iterable of (str, str)
        Label and text.
    unbroken : iterable of str
        Labels of texts that stay on one line, such as commands to copy.
    """
    rows, unbroken = list(rows), set(unbroken)
    indent = max(len(label) for label, _ in rows) + 4
    lines = []
    for label, text in rows:
        width = sys.maxsize if label in unbroken else _width()
        first, *rest = textwrap.wrap(
            text,
            width - indent,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
        name = click.style(label, bold=True) + " " * (indent - 2 - len(label))
        lines.append(f"  {name}{first}".rstrip())
        lines += [" " * indent + line for line in rest]
    return "\n".join(lines)


def _width() -> int:
    """Return the columns of the terminal, within reason; 80 if there is none."""
    if not sys.stdout.isatty():
        return WIDTH
    return min(shutil.get_terminal_size((WIDTH, 24)).columns, WIDEST)
