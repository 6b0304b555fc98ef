"""A whole run as data: what was measured, and what follows from it."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from linkern.bench.curves import exponent, overtaken
from linkern.bench.machine import Machine
from linkern.bench.peers import COPY, GEMM, OURS, peer_named
from linkern.bench.peers.limits import COPIED, ORDER
from linkern.bench.race import Row
from linkern.bench.tasks import Task, task_named
from linkern.bench.timing import Spread

__all__ = ["SOFTMAX", "Run"]

SOFTMAX = "torch-sdpa"


@dataclass(frozen=True)
class Run:
    """What was measured in one run.

    Parameters
    ----------
    machine : Machine
        On what.
    commit : str
        Of the code; empty if not known.
    threads, seed : int
        As asked for.
    rows : tuple of Row
        Task by task, length by length.
    """

    machine: Machine
    commit: str
    threads: int
    seed: int
    rows: tuple[Row, ...]

    @cached_property
    def _rows(self) -> dict[tuple[str, int, str], Row]:
        return {(row.task, row.length, row.peer): row for row in self.rows}

    def row(self, task: str, length: int, peer: str) -> Row | None:
        """Return one row; None if there is none."""
        return self._rows.get((task, length, peer))

    def seconds(self, task: str, length: int, peer: str) -> Spread | None:
        """Return the time of one contestant; None if it was not timed."""
        row = self.row(task, length, peer)
        return None if row is None else row.seconds

    def tasks(self) -> tuple[Task, ...]:
        """Return the tasks of the run, in order."""
        found = (task_named(name) for name in dict.fromkeys(r.task for r in self.rows))
        return tuple(task for task in found if task is not None)

    def lengths(self, task: str) -> tuple[int, ...]:
        """Return the lengths of a task, in order."""
        return tuple(sorted({row.length for row in self.rows if row.task == task}))

    def contestants(self, task: str, length: int) -> tuple[Row, ...]:
        """Return who did a task at a length, without the limits."""
        return tuple(
            row
            for row in self.rows
            if (row.task, row.length) == (task, length) and row.peer not in (GEMM, COPY)
        )

    def ratio(self, row: Row) -> Spread | None:
        """Return how many times as long as linkern in the same rounds."""
        return _over(row.seconds, self.seconds(row.task, row.length, OURS))

    def relative(self, row: Row) -> Spread | None:
        """Return the time in units of the product of two 2048 x 2048 matrices."""
        return _over(row.seconds, self.seconds(row.task, row.length, GEMM))

    def peak(self, task: str, length: int) -> Spread | None:
        """Return the GEMM peak in operations per second."""
        return _rate(2 * ORDER**3, self.seconds(task, length, GEMM))

    def bandwidth(self, task: str, length: int) -> Spread | None:
        """Return the bytes per second of copying, read and written."""
        return _rate(2 * COPIED, self.seconds(task, length, COPY))

    def fraction(self, row: Row) -> Spread | None:
        """Return the share of the GEMM peak, by what the chunk form at 64 executes."""
        of = task_named(row.task)
        work = None if of is None else of.operations(row.length)
        if work is None or not _same(row.peer):
            return None
        gemm = self.seconds(row.task, row.length, GEMM)
        return _scaled(_over(gemm, row.seconds), work / (2 * ORDER**3))

    def floor(self, row: Row) -> float | None:
        """Return the time that inputs and outputs need to pass, over the time taken."""
        of = task_named(row.task)
        count = None if of is None else of.compulsory_bytes(row.length)
        bandwidth = self.bandwidth(row.task, row.length)
        if count is None or bandwidth is None or row.seconds is None:
            return None
        return count / bandwidth.median / row.seconds.median

    def fastest(self, task: str, length: int, among: Iterable[str] = ()) -> Row | None:
        """Return the fastest other contestant, of some or of all that do the same."""
        names = set(among)
        return min(
            (
                row
                for row in self.contestants(task, length)
                if row.seconds is not None
                and (row.peer in names if names else _same(row.peer))
                and not row.peer.startswith(OURS)
            ),
            key=lambda row: row.seconds.median if row.seconds else 0.0,
            default=None,
        )

    def exponent(self, task: str, peer: str) -> float | None:
        """Return `p` of ``seconds ~ T^p``; None below three lengths."""
        found = [
            (length, seconds.median)
            for length in self.lengths(task)
            if (seconds := self.seconds(task, length, peer)) is not None
        ]
        return exponent([x for x, _ in found], [y for _, y in found])

    def crossover(self, task: str, peer: str = SOFTMAX) -> int | None:
        """Return from which length on linkern takes less; None if at none."""
        both = [
            (length, ours.median, theirs.median)
            for length in self.lengths(task)
            if (ours := self.seconds(task, length, OURS)) is not None
            and (theirs := self.seconds(task, length, peer)) is not None
        ]
        lengths, ours_, theirs_ = ([row[i] for row in both] for i in range(3))
        return overtaken([int(x) for x in lengths], ours_, theirs_)


def _same(name: str) -> bool:
    """Return whether a contestant computes the same, all of it."""
    peer = peer_named(name)
    return peer is not None and peer.meaning == "attention"


def _over(one: Spread | None, other: Spread | None) -> Spread | None:
    return None if one is None or other is None else one.over(other)


def _rate(work: float, seconds: Spread | None) -> Spread | None:
    if seconds is None:
        return None
    slow, fast = work / seconds.high, work / seconds.low
    return Spread(work / seconds.median, slow, fast, seconds.rounds)


def _scaled(spread: Spread | None, by: float) -> Spread | None:
    if spread is None:
        return None
    middle, low, high = (by * x for x in (spread.median, spread.low, spread.high))
    return Spread(middle, low, high, spread.rounds)
