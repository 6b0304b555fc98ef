"""Verdict on a task in a process of its own, on any worker.

A referee has its process to itself: a library of a cluster runs threads beside a task,
and one that dies takes no other kernel along. The process ends when its caller does.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import BinaryIO, cast

from linkern.testing.campaign.task import Task, Unjudged
from linkern.testing.report.report import Report
from linkern.testing.target.wire import (
    OWN,
    new_ticket,
    read_message,
    read_prefix,
    write,
)
from linkern.testing.target.worker import streams

__all__ = ["ProcessEndedError", "call_alone", "main"]


class ProcessEndedError(Exception):
    """A process ended before it gave an answer."""


@dataclass(frozen=True)
class Request:
    """Request to call a function of a module with a task."""

    module: str
    name: str
    task: Task


def call_alone(
    function: Callable[[Task], Report | Unjudged],
    task: Task,
    running: set[subprocess.Popen[bytes]] | None = None,
) -> Report | Unjudged:
    """Call a function with a task in a new process, and return its result.

    Parameters
    ----------
    function : callable
        A function of a module that the process can import.
    task : Task
        Its argument.
    running : set, optional
        Holds the process as long as it runs: to close its standard input ends it.

    Raises
    ------
    ProcessEndedError
        If the process ends, or is ended, before it answers.
    """
    running = set() if running is None else running
    process = subprocess.Popen(
        [sys.executable, "-c", f"import {__name__} as child; child.main()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for its caller
    )
    requests, replies = cast(BinaryIO, process.stdin), cast(BinaryIO, process.stdout)
    running.add(process)
    request = Request(function.__module__, function.__name__, task)
    ticket = new_ticket()
    answer: Report | Unjudged | None = None
    try:
        with suppress(BrokenPipeError, EOFError), process:
            write(requests, request, ticket)
            prefix = read_prefix(replies)
            if prefix.ticket == ticket:
                answer = read_message(replies, prefix, (Report, Unjudged), OWN)
    finally:
        running.discard(process)
    if process.returncode or answer is None:
        msg = f"a process ended with exit code {process.returncode}"
        raise ProcessEndedError(msg)
    return answer


def main() -> None:
    """Read a request, answer with the result, and end with the process that asks."""
    requests, replies = streams()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        prefix = read_prefix(requests)
        request = read_message(requests, prefix, (Request,), OWN)
        # Nothing else is sent: what is read next is the end of the pipe.
        watch = threading.Thread(
            target=_end_after, args=(requests.fileno(),), daemon=True
        )
        watch.start()
        function = getattr(import_module(request.module), request.name)
        outcome = function(request.task)
    except (EOFError, KeyboardInterrupt):
        sys.exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its caller stops waiting now
    with suppress(BrokenPipeError), replies:
        write(replies, outcome, prefix.ticket)


def _end_after(pipe: int) -> None:
    """Interrupt the main thread, which closes its target, at the end of a pipe."""
    with suppress(OSError):
        os.read(pipe, 1)
    os.kill(os.getpid(), signal.SIGINT)
