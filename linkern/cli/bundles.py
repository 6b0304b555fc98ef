"""``linkern check-bundle``: run the reproducers of a verdict again."""

import sys
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from linkern.cli.options import EXIT_USAGE, sandbox_option
from linkern.testing import UsageError
from linkern.testing.report import bundle, terminal

__all__ = ["check_bundle"]


@click.command("check-bundle")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@sandbox_option
def check_bundle(folder: Path, *, sandbox: bool) -> None:
    """Run the reproducers of a bundle again.

    FOLDER is one that `linkern verify --bundle` wrote. Its scripts are programs, and so
    is its kernel: read them, or take --sandbox, if it is somebody else's.

    Exit code: 0 every failure of the report is reproduced (or there is none); 1 one is
    gone, or could not be run; 2 the folder is not a bundle.
    """
    try:
        reproductions = bundle.check(folder, sandbox=sandbox)
    except UsageError as error:
        click.echo(f"linkern: {error}", err=True)
        sys.exit(EXIT_USAGE)
    table = Table(title=f"reproducers of {folder}", title_justify="left")
    for name in ("check", "outcome", "said"):
        table.add_column(name, overflow="fold", no_wrap=name == "outcome")
    for one in reproductions:
        table.add_row(one.check, one.outcome, escape(one.said))
    console = terminal.wide_enough(Console())
    console.print(
        table if reproductions else "nothing failed, so there is nothing to run"
    )
    sys.exit(int(any(one.outcome != "reproduced" for one in reproductions)))
