"""Worker process of a run: open the target of a plan, judge checks on request."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

from linkern.testing.checks import CHECKS
from linkern.testing.errors import OutOfTime, UsageError
from linkern.testing.runner.judging import Judgement, judge
from linkern.testing.runner.opening import open_target
from linkern.testing.runner.plan import Plan
from linkern.testing.target.clock import Clock
from linkern.testing.target.process import Target
from linkern.testing.target.protocol import Refused
from linkern.testing.target.wire import OWN, read_message, read_prefix, write
from linkern.testing.target.worker import until_ended

__all__ = ["Late", "Ready", "Task", "main"]


@dataclass(frozen=True)
class Ready:
    """Answer to a plan whose target was opened."""


@dataclass(frozen=True)
class Task:
    """Request to judge a check.

    Parameters
    ----------
    plan : Plan
        The plan of its round.
    check : str
        Its name.
    reported : mapping of str to str
        By deviation, the earlier check that reported it.
    left : float
        Seconds that are left of the run.
    """

    plan: Plan
    check: str
    reported: Mapping[str, str]
    left: float


@dataclass(frozen=True)
class Late:
    """Answer to a task that the time of the run has ended."""


def main() -> None:
    """Answer requests until they end, or until the process is told to end."""
    until_ended(serve)


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer a plan with `Ready` or `Refused`, then each task with its judgement."""
    prefix, clock = read_prefix(requests), Clock()
    plan = read_message(requests, prefix, (Plan,), OWN)
    try:
        target = open_target(plan, clock)
    except UsageError as error:
        write(replies, Refused(str(error)), prefix.ticket)
        return
    try:
        write(replies, Ready(), prefix.ticket)
        while True:
            prefix = read_prefix(requests)
            task = read_message(requests, prefix, (Task,), OWN)
            write(replies, _answer(task, target, clock), prefix.ticket)
    finally:
        target.close()


def _answer(task: Task, target: Target, clock: Clock) -> Judgement | Late:
    """Judge one check while there is time."""
    clock.reset(task.left)
    try:
        return judge(task.plan, target, CHECKS[task.check], task.reported)
    except OutOfTime:
        return Late()
