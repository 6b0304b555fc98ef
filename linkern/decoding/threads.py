"""Threads that wait for work: handing it over costs about twenty microseconds.

A step of a large batch takes a few hundred, so the pool that operators share, which
needs twice as long, would give back much of what a second core gains.
"""

import threading
import weakref
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from os import getpid
from queue import SimpleQueue
from typing import Any

__all__ = ["NAME", "Helpers"]

NAME = "linkern decoder"  # of the threads

Job = Callable[[], None]


class _Helper:
    """One thread, one queue to it and one back."""

    def __init__(self) -> None:
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        self.ends: SimpleQueue[BaseException | None] = SimpleQueue()
        # A thread that is no daemon would keep a program from ending.
        self.thread = threading.Thread(
            target=_serve, args=(self.jobs, self.ends), name=NAME, daemon=True
        )
        self.thread.start()


def _serve(jobs: Any, ends: Any) -> None:
    """Do jobs until there is None in place of one."""
    while (job := jobs.get()) is not None:
        error = None
        try:
            job()
        except BaseException as raised:
            error = raised  # for `run` to raise
        # A thread that waits holds nothing that everybody else has let go.
        del job
        ends.put(error)
        del error


def _dismiss(helpers: list[_Helper]) -> None:
    for helper in helpers:
        helper.jobs.put(None)
    helpers.clear()


class Helpers:
    """As many threads as are needed, started when they are; they end with this object.

    Only one thread at a time may call `run`.
    """

    def __init__(self) -> None:
        self._helpers: list[_Helper] = []
        self._process = getpid()
        weakref.finalize(self, _dismiss, self._helpers)

    def run(self, jobs: Sequence[Job]) -> None:
        """Do all jobs at once, the first in this thread, and wait for all of them.

        What one of them raises is raised here, after the last has ended.
        """
        helpers = self._hired(len(jobs) - 1)
        try:
            for helper, job in zip(helpers, jobs[1:], strict=True):
                # How floating-point errors are treated belongs to the context.
                helper.jobs.put(partial(copy_context().run, job))
            jobs[0]()
            errors = [helper.ends.get() for helper in helpers]
        except BaseException:
            # An interrupt may have come anywhere above, so nobody knows who owes an
            # answer: let them end, which they do after their job, and take others.
            threads = [helper.thread for helper in self._helpers]
            _dismiss(self._helpers)
            for thread in threads:
                thread.join()
            raise
        for error in errors:
            if error is not None:
                raise error

    def _hired(self, count: int) -> list[_Helper]:
        if self._process != getpid():  # threads do not survive a fork
            self._helpers.clear()
            self._process = getpid()
        while len(self._helpers) < count:
            self._helpers.append(_Helper())
        return self._helpers[:count]
