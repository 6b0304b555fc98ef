"""One run on a GPU: every contestant in its own process, judged first, then timed.

They do not take turns as on a CPU: the arrays of two would often not fit into the
memory of a GPU, which nobody else uses meanwhile. Copying is timed before and after.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any

from linkern.bench import truth
from linkern.bench.children import Child, Failed
from linkern.bench.cuda.clocks import Taken
from linkern.bench.cuda.peers import LIMIT
from linkern.bench.cuda.tasks import ALLOWED, DRAWN, drawn, judged_heads
from linkern.bench.peers import Peer, left_out, takes_part
from linkern.bench.tasks import Inputs, Task
from linkern.bench.timing import Spread

__all__ = ["Row", "race"]

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


class _Entrant:
    """A contestant and its process, if that is running."""

    def __init__(self, peer: Peer, start: Callable[[], Any]) -> None:
        self.peer, self._start = peer, start
        self._child: Any = None

    def ask(self, order: str, *arguments: Any) -> Any:
        if self._child is None:
            self._child = self._start()
        try:
            return self._child.ask(order, *arguments)
        except Failed:
            self.close()  # whatever it has left behind, the next order starts anew
            raise

    def release(self) -> None:
        if self._child is not None:
            with suppress(Failed):
                self.ask("release")

    def close(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None


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
        known = {peer.name: _Entrant(peer, start) for peer in (*peers, LIMIT)}
        for entrant in known.values():
            stack.callback(entrant.close)
        for task, lengths in tasks:
            entrants = [known[peer.name] for peer in peers if takes_part(peer, task)]
            rows: list[Row] = []
            for length in lengths:
                judge = _Judge(task, length, seed)
                tell(f"{task.name}, {length}: copying")
                first = _measured(known[LIMIT.name], judge, rounds)
                for entrant in entrants:
                    tell(f"{task.name}, {length}: {entrant.peer.name}")
                    rows.append(_measured(entrant, judge, rounds))
                tell(f"{task.name}, {length}: copying")
                rows.append(_joined(first, _measured(known[LIMIT.name], judge, rounds)))
            yield tuple(rows)


class _Judge:
    """A task at a length, and the answers to it, made when they are first needed."""

    def __init__(self, task: Task, length: int, seed: int) -> None:
        self.task, self.length, self.seed = task, length, seed
        self.rows = truth.judged_rows(length)
        self._inputs: Inputs | None = None
        self._answers: dict[str, list[Any]] = {}

    def error(self, found: list[Any], meaning: str) -> float | None:
        """Return how far some rows are off; None if there is nothing to compare."""
        if meaning == "limit":
            return None
        if meaning not in self._answers:
            if self._inputs is None:
                self._inputs = drawn(self.task, self.length, self.seed)
            due = truth.answers(self._inputs, self.task.kind, meaning, self.rows)
            # Of a VJP, the output is not among what is returned.
            due = due[1:] if self.task.kind == "gradient" else due
            like = [head % DRAWN for head in judged_heads(self.task)]
            self._answers[meaning] = [x[:, like] for x in due]
        return truth.largest_error(found, self._answers[meaning])


def _measured(entrant: _Entrant, judge: _Judge, rounds: int) -> Row:
    peer, task = entrant.peer, judge.task
    row = Row(task.name, judge.length, peer.name, peer.summary)
    reason = left_out(peer, judge.length)
    if reason is not None:
        return replace(row, remark=reason)
    try:
        order = (peer, task, judge.length, judge.seed, judge.rows)
        error = judge.error(entrant.ask("prepare", *order), peer.meaning)
        if error is not None and not error <= ALLOWED[task.dtype]:
            return replace(row, error=error, remark=f"wrong: off by {error:.2g}")
        taken: Taken = entrant.ask("measure", rounds)
    except Failed as failure:
        return replace(row, remark=f"failed: {failure}")
    finally:
        entrant.release()  # the next one needs the memory
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
