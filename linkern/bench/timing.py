"""Statistics and schedule of timed samples: peers take turns on the same machine.

On a shared machine the speed of one program changes by a factor of two within seconds.
Peers are therefore timed in the same rounds, and each time has its range.
"""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

__all__ = ["Schedule", "Spread", "interleaved"]

T = TypeVar("T")


@dataclass(frozen=True)
class Spread:
    """A median, its range (the lowest and highest sample), and the number of samples.

    Examples
    --------
    >>> Spread.of([3.0, 1.0, 2.0])
    Spread(median=2.0, low=1.0, high=3.0, rounds=3)
    """

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Spread":
        """Return the spread of at least one sample."""
        return cls(median(samples), min(samples), max(samples), len(samples))

    def over(self, other: "Spread") -> "Spread":
        """Return the ratio to `other`; its range is the widest that both allow."""
        return Spread(
            self.median / other.median,
            self.low / other.high,
            self.high / other.low,
            min(self.rounds, other.rounds),
        )

    def times(self, factor: float) -> "Spread":
        """Return the spread of all samples times a positive factor."""
        low, high = self.low * factor, self.high * factor
        return Spread(self.median * factor, low, high, self.rounds)

    def rate(self, work: float) -> "Spread":
        """Return `work` for each second, where the samples are seconds."""
        low, high = work / self.high, work / self.low
        return Spread(work / self.median, low, high, self.rounds)


@dataclass(frozen=True)
class Schedule:
    """Number and length of the turns."""

    rounds: int = 7
    # Seconds after which a task gets no further round; it always has one.
    budget: float = 5.0
    # Seconds before each turn: threads of the one before stop spinning.
    pause: float = 0.08
    clock: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep
    # Seconds that a turn lasts at least: short calls are repeated.
    window: float = 0.25


def interleaved(
    tasks: Mapping[str, Callable[[], T]],
    schedule: Schedule,
    before: Callable[[str], object] = str,
) -> dict[str, list[T]]:
    """Run tasks in turns and return the samples of each in order.

    `before` is called with the name of a task before each of its turns.
    """
    samples: dict[str, list[T]] = {name: [] for name in tasks}
    spent = dict.fromkeys(tasks, 0.0)
    for round_ in range(schedule.rounds):
        gc.collect()  # not in the middle of a turn
        for name, task in tasks.items():
            if round_ and spent[name] >= schedule.budget:
                continue
            before(name)
            schedule.sleep(schedule.pause)
            start = schedule.clock()
            samples[name].append(task())
            spent[name] += schedule.clock() - start
    return samples
