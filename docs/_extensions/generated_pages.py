"""Pages of operators, checks and commands, written before the site is read."""

from pathlib import Path
from typing import Any

import site_pages
from operator_pages import sections_of
from sphinx.application import Sphinx

__all__ = ["setup"]

# What a page of an operator shows under "Call"; the rest has sections of its own.
CALL = ("Parameters", "Returns", "Raises")


def write_pages(app: Sphinx) -> None:
    """Write the generated pages."""
    site_pages.write(Path(app.srcdir) / "generated")


def only_the_call(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Leave out of a docstring what the page of an operator says elsewhere."""
    del what, name, thing, options
    if not app.env.docname.startswith("generated/operators/"):
        return
    doc = sections_of("\n".join(lines))
    kept = [f"{title}\n{'-' * len(title)}\n{doc[title]}" for title in CALL]
    lines[:] = "\n".join(kept).splitlines()


def setup(app: Sphinx) -> dict[str, Any]:
    """Write pages at the start, and cut docstrings before numpydoc reads them."""
    app.connect("builder-inited", write_pages)
    app.connect("autodoc-process-docstring", only_the_call, priority=400)
    return {"parallel_read_safe": True}
