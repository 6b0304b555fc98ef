"""Judge process of a pool: it grades candidates, each in forks of its own.

The judge runs nothing of a candidate. Its template is started again when a candidate
has ended it, or needs a library that is not imported there.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from linkern.testing.grading.single import grade_of_plan
from linkern.testing.report.grade import Grade
from linkern.testing.runner.plan import Plan
from linkern.testing.runner.worker import Ready
from linkern.testing.target.child import Process, launched_by
from linkern.testing.target.clock import Clock
from linkern.testing.target.copies import copied, renamed
from linkern.testing.target.template import Template, can_fork
from linkern.testing.target.wire import OWN, read_message, read_prefix, write
from linkern.testing.target.worker import until_ended

__all__ = ["Assignment", "Warm", "main"]


@dataclass(frozen=True)
class Warm:
    """Request to get ready for candidates that import these libraries."""

    libraries: tuple[str, ...]


@dataclass(frozen=True)
class Assignment:
    """Request to grade the target of a plan.

    Parameters
    ----------
    plan : Plan
        The plan, with `seconds`.
    files : mapping of str to str
        The files of the candidate, by their names: its process sees copies.
    path : tuple of str
        Folders of what else it imports.
    """

    plan: Plan
    files: Mapping[str, str]
    path: tuple[str, ...] = ()


def main() -> None:
    """Answer requests until they end, or until the process is told to end."""
    until_ended(serve)


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer `Warm` with `Ready`, and each assignment with its grade."""
    warm, template = Warm(()), None
    try:
        while True:
            prefix = read_prefix(requests)
            message = read_message(requests, prefix, (Warm, Assignment), OWN)
            if isinstance(message, Warm):
                warm = message
                if template is not None:
                    template.end()
                template = _template(warm)
                write(replies, Ready(), prefix.ticket)
                continue
            clock = Clock(message.plan.seconds)
            if template is not None and not template.alive:
                template = _template(warm)
            write(replies, _graded(message, template, clock), prefix.ticket)
    finally:
        if template is not None:
            template.end()


def _template(warm: Warm) -> Template | None:
    return Template(warm.libraries, os.environ) if can_fork() else None


def _graded(message: Assignment, template: Template | None, clock: Clock) -> Grade:
    """Grade a candidate whose processes see a folder of their own."""
    with copied(message.files) as folder:
        plan, place = message.plan, message.plan.target
        if message.files:
            name, _, attribute = place.rpartition(":")
            place = f"{folder / Path(name).name}:{attribute}"

        def launch(module: str) -> Process:
            if template is not None:
                return template.fork(module, folder, message.path)
            return _started(module, folder, message.path)

        with launched_by(launch) if plan.command is None else nullcontext():
            grade = grade_of_plan(replace(plan, target=place), clock)
        if template is not None:
            template.sweep()
    copy, original = (x.rpartition(":")[0] for x in (place, plan.target))
    return renamed(grade, copy, original)


def _started(module: str, folder: Path, path: tuple[str, ...]) -> Process:
    """Start a process from nothing, where none can be forked."""
    start = (
        f"import sys; sys.path += {[*path]!r}; import {module} as child; child.main()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", start],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
