"""Records of one run: its rows, and the numbers that follow from them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from linkern.bench.cpu.limits import ORDER
from linkern.bench.peers import COPY, GEMM, SOFTMAX
from linkern.bench.scaling import Span, exponent, is_whole, overtaken
from linkern.bench.suites import Suite
from linkern.bench.tasks import OURS, Task
from linkern.bench.timing import Spread

__all__ = ["FOREIGN", "Row", "Run"]

# A turn during which others used more of the processor than this is repeated.
FOREIGN = 0.08


@dataclass(frozen=True)
class Row:
    """Measurements of one peer for one task at one length."""

    task: str
    length: int
    peer: str
    summary: str
    threads: int = 1
    # Of one call, of one token where they come singly, or of generating all tokens;
    # None if it was not timed.
    seconds: Spread | None = None
    # Largest difference from the float64 answer, over its largest number.
    error: float | None = None
    # Why it was not timed; empty if it was.
    remark: str = ""
    # The most memory that one call takes beside inputs and outputs, or that preparation
    # and the last token take of a generator; None if unknown.
    extra_bytes: int | None = None
    # Source of the memory: "tracemalloc" or "resident memory".
    extra_by: str = "tracemalloc"
    # Share of the processor that others used meanwhile; median of the turns.
    foreign: float = 0.0
    # On a GPU: "graph", or "events" and why there was no graph.
    timed_by: str = ""
    # Of a generator: tokens that were timed together, and the lowest seconds of all
    # rounds for each span, since other work only adds to so short a time; bytes that it
    # keeps between tokens, at the end.
    spans: tuple[Span, ...] = ()
    span_seconds: tuple[float, ...] = ()
    held_bytes: int | None = None

    @property
    def sampled(self) -> bool:
        """True if the spans leave tokens out, so that the time is an estimate."""
        return not is_whole(self.spans, self.length)


def latest(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Return the last row of each contestant at each length, in the order they came."""
    last: dict[tuple[str, int, str], Row] = {}
    for row in reversed(rows):
        last.setdefault((row.task, row.length, row.peer), row)
    return tuple(reversed(last.values()))


@dataclass(frozen=True)
class Run:
    """One run of a suite: rows in order of tasks and lengths, and their conditions."""

    suite: Suite
    machine: Any
    commit: str
    seed: int
    rows: tuple[Row, ...]
    threads: int = 1

    @cached_property
    def _rows(self) -> dict[tuple[str, int, str], Row]:
        return {(row.task, row.length, row.peer): row for row in self.rows}

    @cached_property
    def _limits(self) -> set[str]:
        return {limit.name for limit in self.suite.limits}

    def row(self, task: str, length: int, peer: str) -> Row | None:
        """Return one row; None if there is none."""
        return self._rows.get((task, length, peer))

    def seconds(self, task: str, length: int, peer: str) -> Spread | None:
        """Return the time of one peer; None if it was not timed."""
        row = self.row(task, length, peer)
        return None if row is None else row.seconds

    def tasks(self) -> tuple[Task, ...]:
        """Return the tasks of the run, in order."""
        tasks = (
            self.suite.task(name) for name in dict.fromkeys(r.task for r in self.rows)
        )
        return tuple(task for task in tasks if task is not None)

    def lengths(self, task: str) -> tuple[int, ...]:
        """Return the lengths of a task, in order."""
        return tuple(sorted({row.length for row in self.rows if row.task == task}))

    def names(self, task: str) -> list[str]:
        """Return the names of all peers of a task, limits included, in order."""
        return [*dict.fromkeys(row.peer for row in self.rows if row.task == task)]

    def peers(self, task: str, length: int) -> tuple[Row, ...]:
        """Return the rows of a task at a length, without the limits."""
        return tuple(
            row
            for row in self.rows
            if (row.task, row.length) == (task, length) and row.peer not in self._limits
        )

    def ratio(self, row: Row) -> Spread | None:
        """Return the time over that of the baseline in the same rounds."""
        task = self.suite.task(row.task)
        baseline = OURS if task is None else task.baseline
        return _over(row.seconds, self.seconds(row.task, row.length, baseline))

    def relative(self, row: Row) -> Spread | None:
        """Return the time in units of the product of two 2048 x 2048 matrices."""
        return _over(row.seconds, self.seconds(row.task, row.length, GEMM))

    def peak(self, task: str, length: int) -> Spread | None:
        """Return the GEMM peak in operations per second."""
        seconds = self.seconds(task, length, GEMM)
        return None if seconds is None else seconds.rate(2 * ORDER**3)

    def bandwidth(self, task: str, length: int) -> Spread | None:
        """Return the bytes per second of copying, read and written."""
        seconds = self.seconds(task, length, COPY)
        return None if seconds is None else seconds.rate(2 * self.suite.copied)

    def fraction(self, row: Row) -> Spread | None:
        """Return the share of the GEMM peak, counting the chunk form at 64."""
        task = self.suite.task(row.task)
        work = None if task is None else task.operations(row.length)
        gemm = self.seconds(row.task, row.length, GEMM)
        share = _over(gemm, row.seconds)
        if work is None or share is None or not self._same(row.peer):
            return None
        return share.times(work / (2 * ORDER**3))

    def floor(self, row: Row) -> float | None:
        """Return the time of copying all compulsory bytes, over the time taken."""
        task = self.suite.task(row.task)
        count = None if task is None else task.compulsory_bytes(row.length)
        bandwidth = self.bandwidth(row.task, row.length)
        if count is None or bandwidth is None or row.seconds is None:
            return None
        if row.peer in self._limits:
            return None
        return count / bandwidth.median / row.seconds.median

    def fastest(self, task: str, length: int, among: Iterable[str] = ()) -> Row | None:
        """Return the fastest other peer: of these names, or of those with attention."""
        names = set(among)
        return min(
            (
                row
                for row in self.peers(task, length)
                if row.seconds is not None
                and (row.peer in names if names else self._same(row.peer))
                and not row.peer.startswith(OURS)
            ),
            key=lambda row: row.seconds.median if row.seconds else 0.0,
            default=None,
        )

    def exponent(self, task: str, peer: str) -> float | None:
        """Return `p` of ``seconds ~ T^p``; None below three lengths."""
        points = [
            (length, seconds.median)
            for length in self.lengths(task)
            if (seconds := self.seconds(task, length, peer)) is not None
        ]
        return exponent([x for x, _ in points], [y for _, y in points])

    def crossover(self, task: str, peer: str = SOFTMAX) -> int | None:
        """Return from which length on linkern takes less; None if at none."""
        points = [
            (length, ours.median, theirs.median)
            for length in self.lengths(task)
            if (ours := self.seconds(task, length, OURS)) is not None
            and (theirs := self.seconds(task, length, peer)) is not None
        ]
        lengths, ours_, theirs_ = ([point[i] for point in points] for i in range(3))
        return overtaken([int(x) for x in lengths], ours_, theirs_)

    def _same(self, name: str) -> bool:
        """Return True if a peer computes linear attention, all of it."""
        peer = self.suite.peer(name)
        return peer is not None and peer.meaning == "attention"


def _over(one: Spread | None, other: Spread | None) -> Spread | None:
    return None if one is None or other is None else one.over(other)
