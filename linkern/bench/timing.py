"""Time measured fairly: contestants take turns, so that all meet the same machine.

On a shared machine the same program takes twice as long from one second to the next.
What is compared is therefore measured in the same rounds, and given with its range.
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
    """A median and the range it comes from.

    Parameters
    ----------
    median, low, high : float
        Of the samples; `low` and `high` are the extremes.
    rounds : int
        Number of samples.

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


@dataclass(frozen=True)
class Schedule:
    """How often to measure, and by which clock.

    Parameters
    ----------
    rounds : int
        Samples of each contestant, at most.
    budget : float
        Seconds after which a contestant gets no further round; it always gets one.
    pause : float
        Seconds between contestants: threads of one library spin for a while after its
        last call and would take a core from the next.
    clock, sleep : callable
        Time in seconds; waiting. Tests put their own here.
    window : float
        Seconds that a turn lasts at least: short ones are repeated, and give medians.
    """

    rounds: int = 7
    budget: float = 5.0
    pause: float = 0.08
    clock: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep
    window: float = 0.25


def interleaved(
    tasks: Mapping[str, Callable[[], T]],
    schedule: Schedule,
    before: Callable[[str], object] = str,
) -> dict[str, list[T]]:
    """Run tasks in turns and return their samples.

    Parameters
    ----------
    tasks : mapping of str to callable
        Each takes one sample when called: whatever it returns.
    schedule : Schedule
        How often, and by which clock.
    before : callable
        Called with the name of a task before each of its turns; what it returns is
        not looked at.

    Returns
    -------
    dict of str to list
        The samples of each task in order.
    """
    samples: dict[str, list[T]] = {name: [] for name in tasks}
    spent = dict.fromkeys(tasks, 0.0)
    for round_ in range(schedule.rounds):
        gc.collect()  # not in the middle of somebody's turn
        for name, task in tasks.items():
            if round_ and spent[name] >= schedule.budget:
                continue
            before(name)
            schedule.sleep(schedule.pause)
            start = schedule.clock()
            samples[name].append(task())
            spent[name] += schedule.clock() - start
    return samples
