"""Processes that prepare and time one peer each, as the runner sees them."""

import contextlib
import os
from collections.abc import Callable
from math import inf
from typing import Any, Protocol

from linkern.bench.candidates import kept_rows
from linkern.bench.clocks import Turn
from linkern.bench.patience import ORDER, Patience
from linkern.bench.worker import ORDERS, Evidence, Prepare, Rows
from linkern.testing.errors import TargetDied
from linkern.testing.target.child import SMALL, Child, printable
from linkern.testing.target.protocol import Raised
from linkern.testing.target.sandbox import Sandbox
from linkern.testing.target.wire import Limits, WireError

__all__ = ["Failed", "Lazy", "Process", "TooSlow", "Worker", "environment"]

# How many times the bytes of an answer are read before it is refused.
_SLACK = 16
_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "LINKERN_NUM_THREADS",
    "NPROC",  # read by JAX
)


class Failed(Exception):  # noqa: N818 -- no error of ours
    """A peer raised, died, or did not reply in time."""

    word = "failed"

    @property
    def remark(self) -> str:
        """The failure in the words of a row."""
        return f"{self.word}: {self}"


class TooSlow(Failed):
    """A peer used up the time that a contestant has."""

    word = "left out"


def environment(threads: int) -> dict[str, str]:
    """Return the environment of a process whose libraries use so many threads."""
    return {**os.environ, **dict.fromkeys(_VARIABLES, str(threads))}


class Worker(Protocol):
    """Executes the orders of `linkern.bench.worker.LocalWorker`, here or elsewhere."""

    def ask(self, order: str, *arguments: Any) -> Any:
        """Return the reply to an order; raise `Failed` if there is none."""

    def close(self) -> None:
        """End the worker."""


class Process:
    """A worker in a process of its own, whose libraries use so many threads.

    Parameters
    ----------
    threads : int
        Their number.
    sandbox : Sandbox, optional
        What the process runs in.
    patience : Patience, optional
        How long its replies are waited for.
    """

    def __init__(
        self,
        threads: int,
        sandbox: Sandbox | None = None,
        patience: Patience | None = None,
    ) -> None:
        self._patience = patience or Patience()
        self._child = Child("linkern.bench.worker", environment(threads), sandbox)
        self._kept = SMALL

    def ask(self, order: str, *arguments: Any) -> Any:
        """Return the reply to an order; raise `Failed` if there is none."""
        kinds = ORDERS[order]
        request = kinds.request(*arguments)
        limits = SMALL
        if isinstance(request, Prepare):
            self._kept = _limits_of(request, kept_rows(request.length))
            limits = _limits_of(request, request.rows)
        elif kinds.reply is Evidence:
            limits = self._kept
        seconds = self._patience.seconds()
        try:
            reply = self._child.ask(request, seconds, (kinds.reply, Raised), limits)
        except TargetDied as death:
            if death.hung and seconds < ORDER:
                msg = f"not done in the {self._patience.contestant:g} s of a contestant"
                raise TooSlow(msg) from None
            msg = f"its process {death.reason}"
            raise Failed(msg) from None
        except WireError as error:
            msg = f"its options do not cross to another process: {error}"
            raise Failed(msg) from None
        if isinstance(reply, Raised):
            raise Failed(printable(reply.message))
        if isinstance(reply, Turn) and not 0 <= reply.seconds < inf:
            msg = f"its process reported a time of {reply.seconds} s"
            raise Failed(msg)
        return reply.arrays if isinstance(reply, Rows) else reply

    def close(self) -> None:
        """End the process."""
        self._child.end()


def _limits_of(request: Prepare, rows: list[int]) -> Limits:
    """Return the most bytes of some tokens of a peer: at most four outputs."""
    task = request.task
    numbers = 4 * task.batch * task.heads * max(len(rows), 1) * task.dim
    return Limits(header=SMALL.header, arrays=_SLACK * 8 * numbers)


class Lazy:
    """A worker started by its first order, and by the next one after a failure."""

    def __init__(self, start: Callable[[], Worker]) -> None:
        self._start = start
        self._worker: Worker | None = None

    def another(self) -> "Lazy":
        """Return a fresh worker of the same kind."""
        return Lazy(self._start)

    def ask(self, order: str, *arguments: Any) -> Any:
        """Return the reply to an order; raise `Failed` if there is none."""
        if self._worker is None:
            self._worker = self._start()
        try:
            return self._worker.ask(order, *arguments)
        except Failed:
            self.close()  # the next order starts without what this one left behind
            raise

    def release(self) -> None:
        """Free what the worker holds for a task, if it is running."""
        if self._worker is not None:
            with contextlib.suppress(Failed):
                self.ask("release")

    def close(self) -> None:
        """End the worker, if it is running."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None
