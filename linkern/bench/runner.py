"""One run: every peer in a worker of its own, judged first, then timed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median

from linkern.bench import reference, trial
from linkern.bench.candidates import Kept
from linkern.bench.clocks import Peak, Turn
from linkern.bench.patience import Patience
from linkern.bench.peers import Peer, left_out, takes_part
from linkern.bench.records import FOREIGN, Row
from linkern.bench.tasks import Task
from linkern.bench.timing import Schedule, Spread, interleaved
from linkern.bench.workers import Failed, Lazy, Process, Worker

__all__ = ["run"]

Progress = Callable[[str], object]

# Seconds of a call that is not repeated in the hope of a quieter turn.
_LONG = 30.0


@dataclass
class _Candidate:
    """A peer, its worker, and its turns."""

    peer: Peer
    threads: int
    worker: Lazy
    turns: list[Turn] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)


@dataclass(frozen=True)
class _Plan:
    """Settings that are the same for all turns of a run."""

    schedule: Schedule
    attempts: int
    tell: Progress
    patience: Patience
    seed: int = 0


def run(
    tasks: Sequence[tuple[Task, Sequence[int]]],
    peers: Sequence[Peer],
    schedule: Schedule | None = None,
    *,
    limits: Sequence[Peer] = (),
    threads: int = 1,
    seed: int = 0,
    attempts: int = 3,
    progress: Progress | None = None,
    start: Callable[[int], Worker] = Process,
    patience: Patience | None = None,
) -> Iterator[tuple[Row, ...]]:
    """Measure peers at all lengths of some tasks, and yield the rows of each length.

    On a CPU all peers take turns. On a GPU they follow one another: the arrays of two
    may not fit into its memory, and nobody else uses it meanwhile. Rows are yielded as
    they come there, and the limits are timed before and after all others: their last
    rows hold both times (`linkern.bench.records.latest`).

    Parameters
    ----------
    tasks : sequence of (Task, sequence of int)
        Tasks, and the lengths of each.
    peers, limits : sequence of Peer
        Those that cannot do a task, or are not installed, are passed over.
    schedule : Schedule, optional
        Number and length of the turns.
    threads, seed : int
        Of every peer, unless its task says otherwise; of the inputs.
    attempts : int
        The most repetitions of a turn during which others use the processor; the
        quietest counts.
    progress : callable, optional
        Called with a line of text before each step.
    start : callable
        From a number of threads to a worker.
    patience : Patience, optional
        The time of each contestant and of each length on a GPU; the workers have it
        too. Default: they are waited for.
    """
    patience = patience or Patience()
    plan = _Plan(schedule or Schedule(), attempts, progress or str, patience, seed)
    # A worker is kept from one task to the next: some take seconds to start.
    known: dict[tuple[str, int], _Candidate] = {}
    with ExitStack() as stack:

        def candidate(peer: Peer, count: int) -> _Candidate:
            key = (peer.name, min(peer.threads or count, count))
            if key not in known:
                worker = Lazy(partial(start, key[1]))
                stack.callback(worker.close)
                known[key] = _Candidate(peer, key[1], worker)
            return known[key]

        for task, lengths in tasks:
            count = task.threads or threads
            able = [candidate(x, count) for x in peers if takes_part(x, task)]
            bounds = [candidate(x, count) for x in limits if takes_part(x, task)]
            for length in lengths:
                judge = reference.Judge(task, length, seed)
                if task.device == "cuda":
                    yield from (
                        (row,) for row in _one_by_one(able, bounds, judge, plan)
                    )
                    continue
                group = [*able, *bounds]
                judged = _judged(group, judge, plan)
                del judge  # frees the inputs before anything is timed
                yield tuple(_timed(group, judged, task, plan))


def _one_by_one(
    able: Sequence[_Candidate],
    limits: Sequence[_Candidate],
    judge: reference.Judge,
    plan: _Plan,
) -> Iterator[Row]:
    """Measure each candidate alone; the limits twice, before and after the others."""
    known: dict[str, Row] = {}
    plan.patience.begin_task()
    for candidate in (*limits, *able, *limits):
        bounded = candidate in able[1:]
        if bounded and plan.patience.task_is_over():
            why = f"left out: the {plan.patience.task:g} s of this task were over"
            yield _row(candidate, judge, remark=why)
            continue
        plan.patience.begin_contestant(bounded=bounded)
        judged = _judged([candidate], judge, plan)
        (row,) = _timed([candidate], judged, judge.task, plan)
        before = known.get(row.peer)
        known[row.peer] = row if before is None else _joined(before, row)
        yield known[row.peer]


def _judged(
    candidates: Sequence[_Candidate], judge: reference.Judge, plan: _Plan
) -> list[Row]:
    """Prepare peers and compare their answers with the reference."""
    rows = []
    for candidate in candidates:
        peer, task = candidate.peer, judge.task
        plan.tell(f"{task.name}, {judge.length}: {peer.name} is judged")
        rows.append(_verdict(_row(candidate, judge), candidate, judge))
    return rows


def _row(candidate: _Candidate, judge: reference.Judge, remark: str = "") -> Row:
    """Return the row of a candidate before it is measured."""
    peer = candidate.peer
    return Row(
        *(judge.task.name, judge.length, peer.name, peer.summary, candidate.threads),
        extra_by="tracemalloc" if peer.traced else "resident memory",
        remark=remark,
    )


def _verdict(row: Row, candidate: _Candidate, judge: reference.Judge) -> Row:
    """Add the error, or why the peer is not timed."""
    peer, task = candidate.peer, judge.task
    candidate.turns, candidate.kept = [], []
    reason = left_out(peer, judge.length)
    if reason is not None:
        return replace(row, remark=reason)
    order = (peer, task, judge.length, judge.seed, judge.rows)
    try:
        rows = candidate.worker.ask("prepare", *order)
    except Failed as failure:
        return replace(row, remark=failure.remark)
    if peer.meaning in ("limit", "unjudged"):
        return row
    error = judge.error(rows, peer.meaning)
    if not error <= reference.ALLOWED[task.dtype]:
        candidate.worker.release()
        return replace(row, error=error, remark=f"wrong: off by {error:.2g}")
    return replace(row, error=error)


def _timed(
    candidates: Sequence[_Candidate], judged: Sequence[Row], task: Task, plan: _Plan
) -> list[Row]:
    """Let those that were right take turns, and add the times and the memory."""
    rows = {row.peer: row for row in judged}
    ready = {x.peer.name: x for x in candidates if not rows[x.peer.name].remark}
    failures: dict[str, str] = {}

    def tell(what: str, name: str) -> None:
        plan.tell(f"{task.name}, {rows[name].length}: {name}, {what}")

    interleaved(
        {
            name: partial(_turn, candidate, plan, failures)
            for name, candidate in ready.items()
        },
        plan.schedule,
        partial(tell, "time"),
    )
    for name, candidate in ready.items():
        if name in failures:
            rows[name] = replace(rows[name], remark=failures[name])
            continue
        tell("memory", name)
        rows[name] = _measured(rows[name], candidate, task)
        if candidate.peer.judged:
            tell("judged on what was timed", name)
            rows[name] = _tried(rows[name], candidate, task, plan.seed)
        candidate.worker.release()
    return list(rows.values())


def _turn(candidate: _Candidate, plan: _Plan, failures: dict[str, str]) -> None:
    """Take one turn: the quietest of a few, if others were busy and it is not long."""
    if candidate.peer.name in failures:
        return
    tries: list[Turn] = []
    try:
        while not tries or (
            len(tries) < plan.attempts
            and tries[-1].foreign > FOREIGN
            and tries[-1].seconds < _LONG
        ):
            tries.append(candidate.worker.ask("turn", plan.schedule.window))
            if candidate.peer.judged:
                candidate.kept += candidate.worker.ask("kept").kept
    except Failed as failure:
        failures[candidate.peer.name] = failure.remark
        return
    candidate.turns.append(min(tries, key=lambda turn: turn.foreign))


def _measured(row: Row, candidate: _Candidate, task: Task) -> Row:
    """Add the times, and the memory of one more call."""
    limit, turns = candidate.peer.meaning == "limit", candidate.turns
    shared = 1 if limit else task.steps(row.length)
    spans = zip(*(turn.span_seconds for turn in turns), strict=True)
    row = replace(
        row,
        seconds=Spread.of([turn.seconds / shared for turn in turns]),
        foreign=median(turn.foreign for turn in turns),
        timed_by=turns[0].by,
        spans=turns[0].spans,
        span_seconds=tuple(map(min, spans)),
    )
    if limit or task.device == "cuda":
        return row
    try:
        with _fresh(candidate, task, row.length) as worker:
            peak: Peak = worker.ask("peak")
    except Failed:
        return row
    return replace(row, extra_bytes=peak.extra, held_bytes=peak.held)


def _tried(row: Row, candidate: _Candidate, task: Task, seed: int) -> Row:
    """Take the times off a candidate that was wrong while it was timed."""
    try:
        wrong = trial.fault(
            *(candidate.peer, task, row.length, seed, candidate.kept),
            lambda fresh: candidate.worker.ask("again", fresh).kept,
        )
    except Failed as failure:
        wrong = failure.remark
    return replace(row, seconds=None, remark=wrong) if wrong else row


@contextmanager
def _fresh(candidate: _Candidate, task: Task, length: int) -> Iterator[Lazy]:
    """Lend a worker that has done nothing else, where allocations can be traced.

    Memory that an earlier call keeps for the next one would be missed. The growth of a
    process is clearer after a first call, which loads libraries.
    """
    if not candidate.peer.traced:
        yield candidate.worker
        return
    candidate.worker.release()  # inputs may be a large part of all memory
    fresh = candidate.worker.another()
    try:
        fresh.ask("prepare", candidate.peer, task, length, 0, [])
        yield fresh
    finally:
        fresh.close()


def _joined(one: Row, other: Row) -> Row:
    """Return two measurements of the same limit as one."""
    if one.seconds is None or other.seconds is None:
        return one if one.seconds is None else other
    x, y = one.seconds, other.seconds
    both = Spread(
        (x.median + y.median) / 2,
        min(x.low, y.low),
        max(x.high, y.high),
        x.rounds + y.rounds,
    )
    return replace(one, seconds=both)
