"""``linkern grade``: a verdict for programs, one line of JSON for each candidate."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from linkern.cli.options import (
    EXIT_USAGE,
    STDOUT,
    candidate_options,
    contract_of,
    file_option,
    inputs_option,
)
from linkern.cli.verdicts import run_canaries
from linkern.testing import UsageError, grade_many
from linkern.testing.report.grade import Grade
from linkern.testing.report.report import exit_code_of
from linkern.testing.runner.plan import PROFILES, fresh_seed
from linkern.testing.spec.declarations import keywords

__all__ = ["grade"]


@click.command("grade")
@click.argument("candidates", nargs=-1, required=True, metavar="TARGET...")
@candidate_options
@inputs_option
@click.option(
    "--seconds",
    default=20.0,
    show_default=True,
    metavar="S",
    help="Time of each candidate: loading, calls, checks and the search for the cause.",
)
@click.option(
    "--jobs",
    default=2,
    show_default=True,
    type=click.IntRange(min=1),
    metavar="N",
    help="Candidates that are judged at a time.",
)
@click.option(
    "--profile",
    default="default",
    show_default=True,
    help=f"The last round: {'/'.join(PROFILES)}",
)
@click.option(
    "--seed", type=click.IntRange(min=0), help="Of all candidates. Default: fresh."
)
@click.option("--check", multiple=True, metavar="NAME", help="Default all. Repeatable.")
@file_option(
    "--json",
    "Write a line of JSON for each candidate as its grade comes; - is standard output, "
    "which then gets nothing else.",
    dash=True,
)
def grade(candidates: tuple[str, ...], **options: Any) -> None:
    """Grade candidates: verdict, score and cause, each within a time.

    TARGET is `package.module:attribute` or `path/to/file.py:attribute`.

    Exit code: 0 all candidates passed; 1 one failed or is refused; 2 the contract or an
    option cannot be used; 3 nothing could be concluded of one; 4 the referee failed its
    own canaries.
    """
    seed = fresh_seed() if options["seed"] is None else options["seed"]
    path: Path | None = options["json_path"]
    try:
        if options["op"] is None:
            msg = "say which operator the candidates claim to be with --op."
            raise UsageError(msg)
        grades = grade_many(
            candidates,
            op=options["op"],
            jobs=options["jobs"],
            seconds=options["seconds"],
            seed=seed,
            contract=contract_of(options),
            framework=options["framework"],
            device=options["device"],
            dtypes=options["dtype"],
            profile=options["profile"],
            checks=options["check"],
            timeout=options["timeout"],
            memory_limit=options["memory"],
            inputs=options["inputs"],
            sandbox=options["sandbox"],
            options=keywords("--option", options["option"]),
        )
        run_canaries(seed)
        if path is not None and path != STDOUT:
            path.write_text("", encoding="utf-8")
        verdicts = {_written(one, path).verdict for one in grades}
    except (UsageError, OSError) as error:
        click.echo(f"linkern: {error}", err=True)
        sys.exit(EXIT_USAGE)
    sys.exit(exit_code_of(verdicts))


def _written(one: Grade, path: Path | None) -> Grade:
    """Write a grade as a line of JSON, and for people unless that is what they see."""
    line = json.dumps(one.to_dict(), allow_nan=False)
    if path == STDOUT:
        click.echo(line)
        return one
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
    click.echo(f"{one.score:.2f}  {one.target}  {one.message}")
    if one.cause is not None:
        click.echo(f"      cause: {one.cause.sentence}")
    return one
