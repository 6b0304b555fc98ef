"""Goals of a suite: the numbers that a run reached for each."""

from dataclasses import dataclass

from linkern.bench.records import Row, Run
from linkern.bench.suites import Goal, quantity_text
from linkern.bench.tasks import OURS

__all__ = ["Outcome", "outcomes"]


@dataclass(frozen=True)
class Outcome:
    """The number that a run reached for a goal at one length."""

    goal: Goal
    # None for a number fitted over all lengths.
    length: int | None
    # None if it was not measured.
    value: float | None
    # The peer that it was compared with, if any.
    peer: str = ""

    @property
    def verdict(self) -> str:
        """The verdict in one word: "met", "missed", or "not measured"."""
        if self.value is None:
            return "not measured"
        return "met" if self.goal.met(self.value) else "missed"

    def reached(self) -> str:
        """Return the value as text, and the peer it was compared with."""
        if self.value is None:
            return "-"
        whom = f" ({self.peer})" if self.peer else ""
        return quantity_text(self.value, self.goal.quantity) + whom


Reached = tuple[float | None, str]


def outcomes(run: Run) -> tuple[Outcome, ...]:
    """Return the outcome of every goal whose task and length the run has."""
    results: list[Outcome] = []
    for goal in run.suite.goals:
        measured = run.lengths(goal.task)
        lengths = [x for x in measured if x in (goal.lengths or measured)]
        if goal.quantity == "exponent":
            power = run.exponent(goal.task, OURS)
            results += [Outcome(goal, None, power)] if lengths else []
            continue
        reached = {"speed": _speed, "saving": _saving}.get(goal.quantity, _of_linkern)
        results += [Outcome(goal, x, *reached(run, goal, x)) for x in lengths]
    return tuple(results)


def _speed(run: Run, goal: Goal, length: int) -> Reached:
    if any(name.startswith(OURS) for name in goal.against):
        other = run.row(goal.task, length, goal.against[0])
    else:
        other = run.fastest(goal.task, length, goal.against)
    ratio = None if other is None else run.ratio(other)
    if other is None or ratio is None:
        return None, ""
    return ratio.median, other.peer


def _of_linkern(run: Run, goal: Goal, length: int) -> Reached:
    task = run.suite.task(goal.task)
    row = run.row(goal.task, length, OURS if task is None else task.baseline)
    if row is None:
        return None, ""
    if goal.quantity == "blocks":
        return _blocks(run, row), ""
    if goal.quantity in ("copying", "extra"):
        return (run.floor(row) if goal.quantity == "copying" else row.extra_bytes), ""
    spread = run.fraction(row) if goal.quantity == "peak" else row.seconds
    return (None if spread is None else spread.median), ""


def _blocks(run: Run, row: Row) -> float | None:
    """Return the memory of a peer of stores, in chunks of one array."""
    task, peer = run.suite.task(row.task), run.suite.peer(row.peer)
    if task is None or peer is None or row.extra_bytes is None:
        return None
    return row.extra_bytes / task.array_bytes(peer.options["chunk"])


def _saving(run: Run, goal: Goal, length: int) -> Reached:
    ours = run.row(goal.task, length, OURS)
    known = [
        (row.extra_bytes, row.peer)
        for row in run.peers(goal.task, length)
        if row.peer in goal.against and row.extra_bytes
    ]
    if not known or ours is None or not ours.extra_bytes:
        return None, ""
    least, peer = min(known)
    return least / ours.extra_bytes, peer
