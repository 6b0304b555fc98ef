"""One run: every contestant in its own process, judged first, then timed in turns."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any

from linkern.bench import truth
from linkern.bench.children import Child, Failed, Standby
from linkern.bench.peers import LIMITS, Peer, left_out, takes_part
from linkern.bench.tasks import Task
from linkern.bench.timing import Schedule, Spread, interleaved
from linkern.bench.worker import First, Timed

__all__ = ["FOREIGN", "Row", "race"]

# A turn during which others used more of the processor than this is repeated.
FOREIGN = 0.08

Progress = Callable[[str], object]
Start = Callable[[int], Any]


@dataclass(frozen=True)
class Row:
    """What one contestant needed for one task at one length.

    Parameters
    ----------
    task : str
        Name of the task.
    length : int
        Tokens.
    peer, summary : str
        Which contestant.
    threads : int
        How many it was given.
    seconds : Spread or None
        Of one call, or of one token where they come singly; None if it was not timed.
    error : float or None
        Largest difference from the float64 answer, over its largest number.
    remark : str
        Why it was not timed; empty if it was.
    extra_bytes : int or None
        The most memory that one call takes beside inputs and outputs; None if unknown.
    extra_by : {"tracemalloc", "resident memory"}
        How that was measured.
    foreign : float
        Share of the processor that others used meanwhile; median of the turns.
    """

    task: str
    length: int
    peer: str
    summary: str
    threads: int
    seconds: Spread | None = None
    error: float | None = None
    remark: str = ""
    extra_bytes: int | None = None
    extra_by: str = "tracemalloc"
    foreign: float = 0.0


@dataclass
class _Entrant:
    """A contestant and its process."""

    peer: Peer
    threads: int
    process: Standby
    returned: int = 0
    turns: list[Timed] = field(default_factory=list)


def race(
    tasks: Sequence[tuple[Task, Sequence[int]]],
    peers: Sequence[Peer],
    schedule: Schedule | None = None,
    *,
    threads: int = 1,
    seed: int = 0,
    attempts: int = 3,
    progress: Progress | None = None,
    start: Start = Child,
) -> Iterator[tuple[Row, ...]]:
    """Measure contestants at all lengths of some tasks, in turns.

    Parameters
    ----------
    tasks : sequence of (Task, sequence of int)
        What they do, and at which lengths.
    peers : sequence of Peer
        Who takes part; who cannot do a task, or is not installed, is passed over. The
        limits of the machine always take part.
    schedule : Schedule, optional
        How often, and by which clock.
    threads : int
        For every contestant, unless its task says otherwise.
    seed : int
        Of the inputs.
    attempts : int
        How often a turn is made at most, if others use the processor meanwhile; the
        quietest counts.
    progress : callable, optional
        Told in a few words what is about to happen.
    start : callable
        From a number of threads to something like `Child`.

    Yields
    ------
    tuple of Row
        For each task: length by length, in the order of the contestants, limits last.
    """
    schedule = schedule or Schedule()
    course = _Course(schedule, seed, attempts, progress or str)
    # A process is kept from one task to the next: some take seconds to start.
    known: dict[tuple[str, int], _Entrant] = {}
    with ExitStack() as stack:
        for task, lengths in tasks:
            entrants = []
            for peer in (*peers, *LIMITS):
                if takes_part(peer, task):
                    count = task.threads or threads
                    key = (peer.name, min(peer.threads or count, count))
                    if key not in known:
                        process = Standby(partial(start, key[1]))
                        stack.callback(process.close)
                        known[key] = _Entrant(peer, key[1], process)
                    entrants.append(known[key])
            rows: list[Row] = []
            for length in lengths:
                rows += _at_length(task, length, entrants, course)
            yield tuple(rows)


@dataclass(frozen=True)
class _Course:
    """What is the same for all turns of a run."""

    schedule: Schedule
    seed: int
    attempts: int
    tell: Progress


def _at_length(
    task: Task, length: int, entrants: Sequence[_Entrant], course: _Course
) -> list[Row]:
    judge = truth.Judge(task, length, course.seed)
    rows: dict[str, Row] = {}
    for entrant in entrants:
        course.tell(f"{task.name}, {length}: {entrant.peer.name} is judged")
        rows[entrant.peer.name] = _judged(entrant, judge)
    ready = {e.peer.name: e for e in entrants if not rows[e.peer.name].remark}
    del judge
    failures: dict[str, str] = {}
    interleaved(
        {name: _turn(entrant, course, failures) for name, entrant in ready.items()},
        course.schedule,
        lambda name: course.tell(f"{task.name}, {length}: {name} is timed"),
    )
    for name, entrant in ready.items():
        course.tell(f"{task.name}, {length}: memory of {name}")
        if name in failures:
            rows[name] = replace(rows[name], remark=failures[name])
            continue
        rows[name] = _measured(rows[name], entrant, task)
        entrant.process.release()
    return list(rows.values())


def _judged(entrant: _Entrant, judge: truth.Judge) -> Row:
    """Prepare a contestant and say what is wrong with it, if anything is."""
    peer, task = entrant.peer, judge.task
    row = Row(
        task.name,
        judge.length,
        peer.name,
        peer.summary,
        entrant.threads,
        extra_by="tracemalloc" if peer.traced else "resident memory",
    )
    reason = left_out(peer, judge.length)
    if reason is not None:
        return replace(row, remark=reason)
    entrant.turns = []
    order = (peer, task, judge.length, judge.seed, judge.rows)
    try:
        first: First = entrant.process.ask("prepare", *order)
    except Failed as failure:
        return replace(row, remark=f"failed: {failure}")
    entrant.returned = first.returned_bytes
    error = judge.error(first.rows, peer.meaning)
    if error is not None and error > truth.ALLOWED[task.dtype]:
        entrant.process.close()
        return replace(row, error=error, remark=f"wrong: off by {error:.2g}")
    return replace(row, error=error)


def _turn(
    entrant: _Entrant, course: _Course, failures: dict[str, str]
) -> Callable[[], None]:
    """Return one turn: the quietest of a few, if others were busy."""
    name = entrant.peer.name

    def turn() -> None:
        if name in failures:
            return
        found: list[Timed] = []
        try:
            while len(found) < course.attempts and (
                not found or found[-1].foreign > FOREIGN
            ):
                found.append(entrant.process.ask("turn", course.schedule.window))
        except Failed as failure:
            failures[name] = f"failed: {failure}"
            return
        entrant.turns.append(min(found, key=lambda timed: timed.foreign))

    return turn


def _measured(row: Row, entrant: _Entrant, task: Task) -> Row:
    """Add the times, and the memory of one more call."""
    limit = entrant.peer.meaning == "limit"
    shared = 1 if limit else task.steps(row.length)
    row = replace(
        row,
        seconds=Spread.of([turn.seconds / shared for turn in entrant.turns]),
        foreign=median(turn.foreign for turn in entrant.turns),
    )
    if limit:
        return row
    try:
        with _fresh(entrant, task, row.length) as process:
            peak = process.ask("peak")
    except Failed:
        return row
    extra = None if peak is None else max(0, peak - entrant.returned)
    return replace(row, extra_bytes=extra)


@contextmanager
def _fresh(entrant: _Entrant, task: Task, length: int) -> Iterator[Standby]:
    """Lend a process that has done nothing else, where allocations can be traced.

    What an earlier call keeps for the next one would not be seen. The growth of a
    process shows better after a first call, which loads libraries.
    """
    if not entrant.peer.traced:
        yield entrant.process
        return
    entrant.process.release()  # inputs may be a large part of all memory
    fresh = entrant.process.another()
    try:
        fresh.ask("prepare", entrant.peer, task, length, 0, [0], False)
        yield fresh
    finally:
        fresh.close()
