"""Threads that stand for ranks, and the place where all exchange values."""

import threading
from collections.abc import Callable
from typing import Any

__all__ = ["PATIENCE", "Handle", "Meeting", "copied"]

# Seconds that a rank waits for the others.
PATIENCE = 20.0


class Handle:
    """A communication that has begun: `wait` ends it, and writes what was received."""

    def __init__(self, finish: Callable[[], Any]) -> None:
        self._finish: Callable[[], Any] | None = finish

    def wait(self, timeout: Any = None) -> bool:
        """Wait for the end of the communication."""
        del timeout
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()
        return True

    def is_completed(self) -> bool:
        """Wait for the end of the communication, so that a loop of this ends."""
        return self.wait()


class Meeting:
    """Values that all ranks exchange, in collectives that must have one name.

    Parameters
    ----------
    size : int
        The number of ranks.
    """

    def __init__(self, size: int) -> None:
        self.size, self._here = size, threading.local()
        self._held: list[Any] = [None] * size
        self._barrier = threading.Barrier(size)

    @property
    def rank(self) -> int:
        """The rank of this thread."""
        rank: int = self._here.rank
        return rank

    def join(self, rank: int) -> None:
        """Have this thread stand for a rank."""
        self._here.rank = rank

    def abort(self) -> None:
        """Let no rank wait any longer: one has failed."""
        self._barrier.abort()

    def exchanged(self, name: str, value: Any) -> list[Any]:
        """Return the values of all ranks, which call a collective of this name.

        Raises
        ------
        RuntimeError
            If they call different ones, or one calls none.
        """
        rank = self.rank
        self._held[rank] = name, value
        try:
            self._barrier.wait(PATIENCE)
            held = [*self._held]
            self._barrier.wait(PATIENCE)
        except threading.BrokenBarrierError:
            msg = f"rank {rank} waits in {name}, which another rank does not call."
            raise RuntimeError(msg) from None
        if {called for called, _ in held} != {name}:
            calls = ", ".join(
                f"rank {r} {called}" for r, (called, _) in enumerate(held)
            )
            msg = f"all ranks must call the same collective, got {calls}."
            raise RuntimeError(msg)
        return [x for _, x in held]


def copied(tensor: Any) -> Any:
    """Return the numbers of a tensor, which nobody changes."""
    return tensor.detach().clone()
