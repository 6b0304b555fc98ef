"""Processes that prepare and time one peer each, as the runner sees them."""

import contextlib
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["Failed", "Lazy", "Process", "Worker", "environment"]

# Seconds for one order: compiling, or a call that takes minutes.
_PATIENCE = 900.0
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
    """A worker in a process of its own, whose libraries use so many threads."""

    def __init__(self, threads: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from linkern.bench.worker import main; main()"],
            env=environment(threads),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Ctrl-C ends the run, which ends its workers.
            start_new_session=True,
        )

    def ask(self, order: str, *arguments: Any) -> Any:
        """Return the reply to an order; raise `Failed` if there is none."""
        orders, replies = self._process.stdin, self._process.stdout
        assert orders is not None
        assert replies is not None
        timer = threading.Timer(_PATIENCE, self._process.kill)
        timer.daemon = True
        timer.start()
        try:
            pickle.dump((order, arguments), orders)
            orders.flush()
            succeeded, reply = pickle.load(replies)
        except (EOFError, OSError, pickle.UnpicklingError):
            code = self._process.wait()
            msg = f"its process ended with {code}"
            raise Failed(msg) from None
        finally:
            timer.cancel()
        if not succeeded:
            raise Failed(str(reply))
        return reply

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):  # an order that it never read
                pipe.close()


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
