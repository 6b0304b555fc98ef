"""``linkern demo``: the referee on a faulty kernel that is shipped with it."""

import inspect
import sys

import click

from linkern.cli.verdicts import verify
from linkern.testing.kernels import faulty

__all__ = ["demo"]

TARGET = f"{faulty.__name__}:{faulty.attention.__name__}"
WORDS = (TARGET, "--op", "linear_attention", "--profile", "quick", "--fail-fast")
FAILED = 1  # exit code of `linkern verify`


@click.command()
def demo() -> None:
    """Judge a faulty kernel that is shipped with linkern.

    Its source, the verdict on it, the cause, and the command for a kernel of yours.

    Exit code: 0 the fault was found; otherwise that of `linkern verify`, or 1.
    """
    click.echo("This kernel has one fault. A test of 64 tokens does not see it.\n")
    click.echo(inspect.getsource(faulty.attention))
    click.echo(f"$ linkern verify {' '.join(WORDS)}\n")
    try:
        verify.main([*WORDS], "linkern verify", standalone_mode=False)
    except SystemExit as verdict:
        if verdict.code != FAILED:
            sys.exit(verdict.code or FAILED)
    click.echo(
        "\nJudge a kernel of yours:\n"
        "  linkern verify your_package.module:kernel --op linear_attention\n"
        "with --declare layout=bthd if its arrays are (batch, time, heads, dim).\n"
        "`linkern list operators` shows the others, `linkern explain CHECK` a law."
    )
