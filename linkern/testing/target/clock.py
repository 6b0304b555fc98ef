"""The time that a run may take, and targets whose calls end with it."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from linkern.testing.errors import OutOfTime, TargetDied
from linkern.testing.target.loading import Interface
from linkern.testing.target.process import Target
from linkern.testing.target.protocol import Call, Reply, TargetConfig
from linkern.testing.target.worker import Opened

__all__ = ["Clock", "Timed"]


class Clock:
    """Seconds that are left, counted from its making.

    Parameters
    ----------
    seconds : float, optional
        Default: without an end.

    Examples
    --------
    >>> Clock().left
    inf
    >>> Clock(20.0).left <= 20.0
    True
    """

    def __init__(self, seconds: float | None = None) -> None:
        self.reset(seconds)

    def reset(self, seconds: float | None = None) -> None:
        """Count from now on, to another end."""
        self._end = math.inf if seconds is None else time.monotonic() + seconds

    @property
    def left(self) -> float:
        """The seconds that are left; negative behind the end."""
        return self._end - time.monotonic()

    @property
    def wait(self) -> float | None:
        """The seconds that a lock may be waited for; None without an end."""
        return None if math.isinf(self._end) else max(self.left, 0.0)

    @contextmanager
    def without(self, seconds: float) -> Iterator[None]:
        """End earlier in a block, by some seconds that are kept for later."""
        end = self._end
        self._end -= seconds
        try:
            yield
        finally:
            self._end = end

    def require(self) -> None:
        """Require time to be left.

        Raises
        ------
        OutOfTime
            If there is none.
        """
        if self.left <= 0:
            raise OutOfTime


class Timed:
    """A target whose calls end when the time of its run is over.

    A call that the clock ends says nothing of the target: `OutOfTime` is raised, not
    `TargetDied`.

    Parameters
    ----------
    target : Target
        Loaded target.
    clock : Clock
        The time of the run.
    """

    def __init__(self, target: Target, clock: Clock) -> None:
        self._target, self._clock, self._timeout = target, clock, target.timeout
        self.timeout = target.timeout

    @property
    def opened(self) -> Opened:
        """Facts about the target."""
        return self._target.opened

    @property
    def interface(self) -> Interface:
        """Abilities of the target."""
        return self._target.interface

    def call(self, call: Call) -> Reply:
        """Call the target once, for no longer than there is time."""
        self._clock.require()
        self._target.timeout = min(self._timeout, self._clock.left)
        try:
            return self._target.call(call)
        except TargetDied as death:
            if death.hung:
                self._clock.require()
            raise
        finally:
            self._target.timeout = self._timeout

    def reopen(self, config: TargetConfig) -> None:
        """Load the target to be called in another way."""
        self._target.reopen(config)

    def restart(self) -> bool:
        """Have the next call run in a new process; return False if none can be had."""
        return self._target.restart()

    def close(self) -> None:
        """Release the target."""
        self._target.close()
