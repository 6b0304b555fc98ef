"""Orders in which the threads of a launch run."""

from dataclasses import dataclass

__all__ = ["LANDINGS", "SCHEDULES", "Way", "several"]

SCHEDULES = ("forward", "reverse", "shuffled", "ahead")
LANDINGS = ("at once", "when waited for", "at random")


@dataclass(frozen=True)
class Way:
    """Order in which threads run, and time at which copies finish.

    Parameters
    ----------
    schedule : {"forward", "reverse", "shuffled", "ahead"}
        Thread by thread, each as far as it can run, from the first or from the last; in
        a new order in every round; one warp far ahead of the others.
    landing : {"at once", "when waited for", "at random"}
        When asynchronous copies finish.
    truncates : bool
        True if sums of products are truncated, as tensor cores may do, not rounded.
    seed : int
        Seed of random choices.
    resident : int
        Blocks that run at the same time.
    """

    schedule: str = "forward"
    landing: str = "when waited for"
    truncates: bool = False
    seed: int = 1
    resident: int = 1

    def __str__(self) -> str:
        """Return the schedule and the seed that it depends on."""
        drawn = self.schedule in ("shuffled", "ahead")
        return f"{self.schedule}, seed {self.seed}" if drawn else self.schedule


def several(count: int) -> list[Way]:
    """Return ways that differ, the deterministic ones first.

    Examples
    --------
    >>> [str(way) for way in several(4)]
    ['forward', 'reverse', 'ahead, seed 1', 'shuffled, seed 1']
    """
    drawn = [
        Way(schedule, seed=seed, resident=3)
        for seed in range(1, count)
        for schedule in ("ahead", "shuffled")
    ]
    return [Way("forward"), Way("reverse"), *drawn][:count]
