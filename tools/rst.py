"""Pieces of reStructuredText, for the pages that the site generates."""

from collections.abc import Iterable, Sequence
from textwrap import indent

__all__ = ["bullets", "code", "hidden_toctree", "page", "section", "table"]


def page(title: str, *parts: str) -> str:
    """Return a page from its title and its parts; empty parts are left out.

    Its label is its title in lower case with hyphens, as in ``[text](#all-checks)``.
    """
    label = title.lower().replace(" ", "-")
    return f".. _{label}:\n\n{_titled(title, '=', parts)}\n"


def section(title: str, *parts: str) -> str:
    """Return a section of a page."""
    return _titled(title, "-", parts)


def code(text: str, language: str = "python") -> str:
    """Return a block of code."""
    return f".. code-block:: {language}\n\n" + indent(text.strip("\n"), "   ")


def bullets(items: Iterable[str]) -> str:
    """Return a list; further lines of an item are indented."""
    return "\n".join("- " + indent(item, "  ").lstrip() for item in items)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table below a row of names."""
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for first, *rest in (head, *rows):
        lines += [f"   * - {first}", *(f"     - {cell}" for cell in rest)]
    return "\n".join(lines)


def hidden_toctree(names: Iterable[str]) -> str:
    """Return a list of pages that only the sidebar shows."""
    return "\n".join([".. toctree::", "   :hidden:", "", *(f"   {x}" for x in names)])


def _titled(title: str, rule: str, parts: Iterable[str]) -> str:
    head = f"{title}\n{rule * len(title)}"
    return "\n\n".join([head, *(part.strip("\n") for part in parts if part)])
