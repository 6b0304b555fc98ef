"""Files and annotations of a verdict."""

import os
import tempfile
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from linkern.testing import Report
from linkern.testing.report import bundle, github
from linkern.testing.runner import reproduce

__all__ = ["name_file", "write_files"]


def write_files(console: Console, report: Report, options: dict[str, Any]) -> None:
    """Write the files that the options ask for, and the inputs of crashes."""
    crashes: Path | None = None
    for result in report.checks:
        example = result.counterexample
        folder = options["repro"]
        if folder is None and example is not None and example.died:
            # The input of a crash is never lost, and never in anyone's way.
            folder = crashes = crashes or Path(tempfile.mkdtemp(prefix="linkern-"))
        if folder is not None and example is not None:
            script = reproduce.write(report.plan, result, example, folder)
            for path in (script, script.with_suffix(".npz")):
                name_file(console, path)
    if options["html_path"] is not None:
        report.to_html(options["html_path"])
        name_file(console, options["html_path"])
    if options["bundle_path"] is not None:
        source = not options["no_source"]
        for path in bundle.write(report, options["bundle_path"], source=source):
            name_file(console, path)
    if options["annotate"] == "github":
        _annotate(report)


def _annotate(report: Report) -> None:
    """Print the workflow commands of GitHub, and add to the summary of the job."""
    for line in github.annotations(report):
        click.echo(line)
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(github.summary(report))


def name_file(console: Console, path: Path) -> None:
    """Say that a file was written, on one line whatever the width."""
    console.print(Text(f"wrote {path}"), soft_wrap=True)
