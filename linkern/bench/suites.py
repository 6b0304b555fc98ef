"""Suites: tasks, peers, limits and goals that belong together, as data.

`linkern.bench.cpu`, `linkern.bench.cuda` and `linkern.bench.generation` have one each;
the runner, the records and the tables are the same for all.
"""

from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType

from linkern.bench.peers import Peer
from linkern.bench.tasks import Task
from linkern.bench.timing import Schedule

__all__ = ["Goal", "Suite", "quantity_text"]


@dataclass(frozen=True)
class Goal:
    """One number to be reached."""

    task: str
    # All lengths that were measured if empty.
    lengths: tuple[int, ...]
    # "speed" relative to others; "peak": share of the GEMM peak; "copying": share of
    # copying; "seconds"; "extra": bytes beside inputs and outputs; "saving": those of
    # others relative to them; "blocks": those in chunks of one array of a store;
    # "exponent" of the length that time grows with.
    quantity: str
    # Bounds of the number.
    least: float | None = None
    most: float | None = None
    # The best of these peers, or of all that compute the same; the same in words.
    against: tuple[str, ...] = ()
    whom: str = "the fastest peer"

    def text(self) -> str:
        """Return the goal in words."""
        bounds = [
            f"{word} {quantity_text(x, self.quantity)}"
            for word, x in (("at least", self.least), ("at most", self.most))
            if x is not None
        ]
        subject = _WORDS[self.quantity].format(whom=self.whom)
        return f"{subject} {' and '.join(bounds)}"

    def met(self, x: float) -> bool:
        """Return True if a number is within the bounds."""
        low, high = self.least, self.most
        return (low is None or x >= low) and (high is None or x <= high)


_WORDS = MappingProxyType(
    {
        "speed": "times as fast as {whom}:",
        "peak": "share of the GEMM peak:",
        "copying": "share of copying:",
        "seconds": "time:",
        "extra": "memory beside inputs and outputs:",
        "saving": "times less memory than {whom}:",
        "blocks": "all memory, in blocks of one array:",
        "exponent": "power of the length that time grows with:",
    }
)


def quantity_text(x: float, quantity: str) -> str:
    """Return a number in the unit of its quantity."""
    if quantity in ("peak", "copying"):
        return f"{100 * x:.1f} %"
    if quantity == "seconds":
        return f"{1e6 * x:.4g} us"
    if quantity == "extra":
        return f"{x / 2**20:.1f} MiB"
    if quantity == "blocks":
        return f"{x:.1f}"
    return f"{x:.2f}" + ("x" if quantity in ("speed", "saving") else "")


@dataclass(frozen=True)
class Suite:
    """One benchmark; its name selects columns of tables and fields of files."""

    name: str
    # The command that writes files of the schema.
    command: str
    schema: str | int
    tasks: tuple[Task, ...]
    peers: tuple[Peer, ...] = ()
    # Peers that take part in every task.
    limits: tuple[Peer, ...] = ()
    goals: tuple[Goal, ...] = ()
    schedule: Schedule = field(default_factory=Schedule)
    # Tasks, peers (all if empty) and turns of a quick run.
    quick_tasks: tuple[str, ...] = ()
    quick_peers: tuple[str, ...] = ()
    quick_schedule: Schedule = field(default_factory=Schedule)
    # Bytes that the limit `COPY` copies.
    copied: int = 0
    # Seconds of each contestant at one length, and of all of them: compilers included.
    contestant_seconds: float = inf
    task_seconds: float = inf

    def task(self, name: str) -> Task | None:
        """Return the task of a name, or None."""
        return next((task for task in self.tasks if task.name == name), None)

    def peer(self, name: str) -> Peer | None:
        """Return the peer or limit of a name, or None."""
        known = (*self.peers, *self.limits)
        return next((peer for peer in known if peer.name == name), None)
