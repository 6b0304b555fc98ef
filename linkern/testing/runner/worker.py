"""Worker process of a run: open the target of a plan, judge checks on request."""

import contextlib
import math
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

from linkern.testing.checks import CHECKS
from linkern.testing.errors import OutOfTime, UsageError
from linkern.testing.runner.judging import Judgement, judge
from linkern.testing.runner.opening import open_target
from linkern.testing.runner.plan import Plan
from linkern.testing.target.clock import Clock
from linkern.testing.target.protocol import Refused
from linkern.testing.target.wire import OWN, read_message, read_prefix, write
from linkern.testing.target.worker import streams

__all__ = ["Ready", "Task", "Unfinished", "main"]


@dataclass(frozen=True)
class Ready:
    """Answer to a plan whose target was opened."""


@dataclass(frozen=True)
class Task:
    """Request to judge a check.

    Parameters
    ----------
    plan : Plan
        The plan of the round.
    check : str
        Its name.
    reported : mapping of str to str
        By deviation, the earlier check that reported it.
    seconds : float
        The time that is left.
    """

    plan: Plan
    check: str
    reported: Mapping[str, str]
    seconds: float = math.inf


@dataclass(frozen=True)
class Unfinished:
    """Answer to a task that the clock has ended."""


def main() -> None:
    """Answer requests until they end, or until the process is told to end."""
    # As an interrupt: the target, which is a process of its own, is closed first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    requests, replies = streams()
    try:
        serve(requests, replies)
    except (EOFError, KeyboardInterrupt):
        return


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer a plan with `Ready` or `Refused`, then each task with its judgement.

    The answer to a task that the clock ends is `Unfinished`.
    """
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
            clock.reset(task.seconds)
            answer: Judgement | Unfinished = Unfinished()
            with contextlib.suppress(OutOfTime):
                answer = judge(task.plan, target, CHECKS[task.check], task.reported)
            write(replies, answer, prefix.ticket)
    finally:
        target.close()
