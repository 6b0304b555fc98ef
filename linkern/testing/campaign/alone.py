"""Call of a function in a process of its own, on any worker.

A referee has its process to itself: a library of a cluster runs threads beside a task,
and one that dies takes no other kernel along. The process ends when its caller does.
"""

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from linkern.testing.target.worker import streams

__all__ = ["ProcessEndedError", "call_alone", "main"]


class ProcessEndedError(Exception):
    """A process ended before it gave an answer."""


def call_alone(
    function: Callable[..., Any],
    *arguments: Any,
    running: set[subprocess.Popen[bytes]] | None = None,
) -> Any:
    """Call a function in a new process, and return its result.

    Parameters
    ----------
    function : callable
        A function that the process can import.
    *arguments
        Its arguments, which can be pickled, as its result can.
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
    assert process.stdin is not None
    assert process.stdout is not None
    running.add(process)
    try:
        with suppress(BrokenPipeError), process:
            process.stdin.write(pickle.dumps((function, arguments)))
            process.stdin.flush()
            answer = process.stdout.read()
    finally:
        running.discard(process)
    if process.returncode:
        msg = f"a process ended with exit code {process.returncode}"
        raise ProcessEndedError(msg)
    return pickle.loads(answer)


def main() -> None:
    """Read a call, answer with its result, and end with the process that asks."""
    requests, replies = streams()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        function, arguments = pickle.load(requests)
        # Nothing else is sent: what is read next is the end of the pipe.
        watch = threading.Thread(
            target=_end_after, args=(requests.fileno(),), daemon=True
        )
        watch.start()
        answer = pickle.dumps(function(*arguments))
    except (EOFError, KeyboardInterrupt):
        sys.exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its caller stops waiting now
    with suppress(BrokenPipeError), replies:
        replies.write(answer)


def _end_after(pipe: int) -> None:
    """Interrupt the main thread, which closes its target, at the end of a pipe."""
    with suppress(OSError):
        os.read(pipe, 1)
    os.kill(os.getpid(), signal.SIGINT)
