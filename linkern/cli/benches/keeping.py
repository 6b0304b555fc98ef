"""Rows of a run as they come: written after each length, shown after each task."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import click

from linkern.bench.records import Row, Run, latest
from linkern.cli.options import EXIT_INTERRUPTED

__all__ = ["Kept", "end_interrupted"]


@dataclass(frozen=True)
class Kept:
    """File and display that take the rows of a run."""

    # The run without rows.
    empty: Run
    # File that is written anew with all rows so far; None for none.
    path: Path | None
    write: Callable[[Run, Path], None]
    # Called with the rows of each task.
    show: Callable[[Run], None]

    def through(self, parts: Iterable[tuple[Row, ...]]) -> tuple[Run, bool]:
        """Return the whole run, and False if it was interrupted."""
        rows: list[Row] = []
        shown = 0
        complete = True
        try:
            for part in parts:
                if part and rows and part[0].task != rows[-1].task:
                    self.show(self._run(rows[shown:]))
                    shown = len(rows)
                rows += part
                if self.path is not None:
                    self.write(self._run(rows), self.path)
        except KeyboardInterrupt:
            complete = False
        if rows[shown:]:
            self.show(self._run(rows[shown:]))
        return self._run(rows), complete

    def _run(self, rows: list[Row]) -> Run:
        return replace(self.empty, rows=latest(rows))


def end_interrupted(path: Path | None) -> None:
    """Say where the rows are that were measured before an interruption, and exit."""
    where = "" if path is None else f" and in {path}"
    click.echo(f"interrupted: all lengths that were measured are above{where}.")
    sys.exit(EXIT_INTERRUPTED)
