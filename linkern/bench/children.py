"""Processes that are told what to time, and what is left of them when they fail."""

import contextlib
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["Child", "Failed", "Standby", "environment"]

# Compiling, or a call that takes minutes; whatever takes longer does not come back.
_PATIENCE = 900.0
_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "LINKERN_NUM_THREADS",
    "NPROC",  # asked for by JAX
)


class Failed(Exception):  # noqa: N818 -- no error of ours
    """A contestant raised, died, or did not come back."""


def environment(threads: int) -> dict[str, str]:
    """Return the environment of a process that is to use so many threads."""
    return {**os.environ, **dict.fromkeys(_VARIABLES, str(threads))}


class Child:
    """A process of its own for one contestant.

    Parameters
    ----------
    threads : int
        How many its libraries may use.
    worker : str
        The module whose function ``main`` answers orders.
    """

    def __init__(self, threads: int, worker: str = "linkern.bench.worker") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {worker} import main; main()"],
            env=environment(threads),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Ctrl-C ends the run, which ends its children.
            start_new_session=True,
        )

    def ask(self, order: str, *arguments: Any) -> Any:
        """Return the reply to an order.

        Raises
        ------
        Failed
            If there was none, or what was to be done raised.
        """
        orders, replies = self._process.stdin, self._process.stdout
        assert orders is not None
        assert replies is not None
        impatience = threading.Timer(_PATIENCE, self._process.kill)
        impatience.daemon = True
        impatience.start()
        try:
            pickle.dump((order, arguments), orders)
            orders.flush()
            well, reply = pickle.load(replies)
        except (EOFError, OSError, pickle.UnpicklingError):
            code = self._process.wait()
            msg = f"its process ended with {code}"
            raise Failed(msg) from None
        finally:
            impatience.cancel()
        if not well:
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


class Standby:
    """A process that its first order starts, and so does the next after one failed.

    Parameters
    ----------
    start : callable
        Returns something like `Child`.
    """

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start = start
        self._child: Any = None

    def another(self) -> "Standby":
        """Return one of the same kind, which has done nothing yet."""
        return Standby(self._start)

    def ask(self, order: str, *arguments: Any) -> Any:
        """Return the reply to an order; see `Child.ask`."""
        if self._child is None:
            self._child = self._start()
        try:
            return self._child.ask(order, *arguments)
        except Failed:
            self.close()  # whatever it has left behind, the next order starts anew
            raise

    def release(self) -> None:
        """Let it go of what it holds for a task, if it is running."""
        if self._child is not None:
            with contextlib.suppress(Failed):
                self.ask("release")

    def close(self) -> None:
        """End the process, if it is running."""
        if self._child is not None:
            self._child.close()
            self._child = None
