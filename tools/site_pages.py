"""Write the generated pages of the site: operators, checks, the command line.

    python tools/site_pages.py FOLDER

`docs/conf.py` writes them into `docs/generated` whenever the site is built.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import check_pages
import click
import operator_pages
import rst

from linkern.cli import main

__all__ = ["write"]


def pages() -> dict[str, str]:
    """Return all generated pages by their paths, without the suffix."""
    return {
        "operators": operator_pages.index(),
        **{f"operators/{x}": text for x, text in operator_pages.pages().items()},
        "checks": check_pages.index(),
        **{f"checks/{x}": text for x, text in check_pages.pages().items()},
        "command-line": command_line(),
    }


def command_line() -> str:
    """Return the page with the help of each command."""
    text = "``linkern --help`` and ``linkern COMMAND --help`` print what follows."
    context = click.Context(main, info_name="linkern", **main.context_settings)
    return rst.page("The command line", text, *_help_of(main, context))


def _help_of(command: click.Command, context: click.Context) -> Iterator[str]:
    help_text = command.get_help(context)
    yield rst.section(context.command_path, rst.code(help_text, "text"))
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _help_of(inner, click.Context(inner, context, name))


def write(folder: Path) -> None:
    """Write the pages that differ from what is there, and remove all others.

    Sphinx reads a page again if its time has changed.
    """
    texts = {folder / f"{name}.rst": text for name, text in pages().items()}
    for path in set(folder.rglob("*.rst")) - texts.keys():
        path.unlink()
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
