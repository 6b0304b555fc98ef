"""Worker process of a run: open the target of a plan, judge checks on request."""

import pickle
import signal
from typing import BinaryIO

from linkern.testing.checks import CHECKS
from linkern.testing.errors import OutOfTime, UsageError
from linkern.testing.runner.judging import judge
from linkern.testing.runner.opening import open_target
from linkern.testing.target.clock import Clock
from linkern.testing.target.worker import send, streams

__all__ = ["main"]


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
    """Answer a plan with None or the reason why it is refused, then each check.

    The answer to a check that the clock ends is None.
    """
    plan, clock = pickle.load(requests), Clock()
    try:
        target = open_target(plan, clock)
    except UsageError as error:
        send(replies, error)
        return
    try:
        send(replies, None)
        while True:
            plan, name, reported, left = pickle.load(requests)
            clock.reset(left)
            try:
                judgement = judge(plan, target, CHECKS[name], reported)
            except OutOfTime:
                judgement = None
            send(replies, judgement)
    finally:
        target.close()
