"""Seconds that contestants may take: for one order, in all, and together."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["ORDER", "Patience"]

# Seconds for one order: compiling, or a call that takes minutes.
ORDER = 900.0


@dataclass
class Patience:
    """Seconds that are waited; shared by a run and its workers.

    Parameters
    ----------
    contestant : float
        For all that one contestant does at one length: compiling, answering, timing.
        The first one and the limits have more.
    task : float
        For all contestants at one length: later ones are left out, but neither the
        first one nor the limits.
    clock : callable
        Seconds of now.
    """

    contestant: float = math.inf
    task: float = math.inf
    clock: Callable[[], float] = time.monotonic
    _contestant_ends: float = field(default=math.inf, init=False)
    _task_ends: float = field(default=math.inf, init=False)

    def begin_task(self) -> None:
        """Begin the time of a task at one length."""
        self._task_ends = self.clock() + self.task

    def begin_contestant(self, *, bounded: bool = True) -> None:
        """Begin the time of a contestant; without a bound only orders have one."""
        self._contestant_ends = self.clock() + (
            self.contestant if bounded else math.inf
        )

    def task_is_over(self) -> bool:
        """Return True if no further contestant may begin."""
        return self.clock() >= self._task_ends

    def seconds(self) -> float:
        """Return the seconds that an order may take now; 0 if none are left."""
        return max(0.0, min(ORDER, self._contestant_ends - self.clock()))
