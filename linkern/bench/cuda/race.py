"""One run on a GPU: every contestant in its own process, judged first, then timed.

They do not take turns as on a CPU: the arrays of two would often not fit into the
memory of a GPU, which nobody else uses meanwhile. Copying is timed before and after.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from linkern.bench.children import Child, Failed, Standby
from linkern.bench.cuda.clocks import Taken
from linkern.bench.cuda.peers import LIMIT
from linkern.bench.cuda.tasks import ALLOWED, DRAWN, drawn, judged_heads
from linkern.bench.peers import Peer, left_out, takes_part
from linkern.bench.tasks import Task
from linkern.bench.timing import Spread
from linkern.bench.truth import Judge

__all__ = ["Row", "judge_of", "race"]

Progress = Callable[[str], object]


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
    seconds : Spread or None
        Of one call; None if it was not timed.
    error : float or None
        Largest difference from the float64 answer, over its largest number.
    remark : str
        Why it was not timed; empty if it was.
    timed_by : str
        "graph" or "events"; see `linkern.bench.cuda.clocks.Taken`.
    """

    task: str
    length: int
    peer: str
    summary: str
    seconds: Spread | None = None
    error: float | None = None
    remark: str = ""
    timed_by: str = ""


def _start() -> Child:
    return Child(1, "linkern.bench.cuda.worker")


def race(
    tasks: Sequence[tuple[Task, Sequence[int]]],
    peers: Sequence[Peer],
    *,
    rounds: int = 7,
    seed: int = 0,
    progress: Progress | None = None,
    start: Callable[[], Any] = _start,
) -> Iterator[tuple[Row, ...]]:
    """Measure contestants at all lengths of some tasks.

    Parameters
    ----------
    tasks : sequence of (Task, sequence of int)
        What they do, and at which lengths.
    peers : sequence of Peer
        Who takes part; who cannot do a task, or is not installed, is passed over.
        Copying always takes part.
    rounds : int
        Samples of each.
    seed : int
        Of the inputs.
    progress : callable, optional
        Told in a few words what is about to happen.
    start : callable
        Returns something like `Child` with a `linkern.bench.cuda.worker.DeviceWorker`.

    Yields
    ------
    tuple of Row
        For each task: length by length, in the order of the contestants, copying last.
    """
    tell = progress or str
    with ExitStack() as stack:
        known = {peer.name: Standby(start) for peer in (*peers, LIMIT)}
        for process in known.values():
            stack.callback(process.close)

        def measured(peer: Peer, judge: Judge) -> Row:
            what = "copying" if peer is LIMIT else peer.name
            tell(f"{judge.task.name}, {judge.length}: {what}")
            return _measured(peer, known[peer.name], judge, rounds)

        for task, lengths in tasks:
            rows: list[Row] = []
            for length in lengths:
                judge = judge_of(task, length, seed)
                first = measured(LIMIT, judge)
                rows += [measured(x, judge) for x in peers if takes_part(x, task)]
                rows.append(_joined(first, measured(LIMIT, judge)))
            yield tuple(rows)


def judge_of(task: Task, length: int, seed: int) -> Judge:
    """Return who judges the heads that contestants were drawn with."""
    like = [head % DRAWN for head in judged_heads(task)]
    # Of a VJP, the output is not among what is returned.
    first = 1 if task.kind == "gradient" else 0
    return Judge(
        *(task, length, seed),
        draw=drawn,
        asked=lambda due: [x[:, like] for x in due[first:]],
    )


def _measured(peer: Peer, process: Standby, judge: Judge, rounds: int) -> Row:
    task = judge.task
    row = Row(task.name, judge.length, peer.name, peer.summary)
    reason = left_out(peer, judge.length)
    if reason is not None:
        return replace(row, remark=reason)
    try:
        order = (peer, task, judge.length, judge.seed, judge.rows)
        error = judge.error(process.ask("prepare", *order), peer.meaning)
        if error is not None and not error <= ALLOWED[task.dtype]:
            return replace(row, error=error, remark=f"wrong: off by {error:.2g}")
        taken: Taken = process.ask("measure", rounds)
    except Failed as failure:
        return replace(row, remark=f"failed: {failure}")
    finally:
        process.release()  # the next one needs the memory
    return replace(
        row, error=error, seconds=Spread.of(taken.seconds), timed_by=taken.by
    )


def _joined(one: Row, other: Row) -> Row:
    """Return the same contestant, timed twice, as one."""
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
