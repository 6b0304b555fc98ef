"""Suites: tasks, peers, limits and goals that belong together, as data.

`linkern.bench.cpu`, `linkern.bench.cuda` and `linkern.bench.generation` have one each;
the runner, the records and the tables are the same for all.
"""

from dataclasses import dataclass, field

from linkern.bench.goals import Goal
from linkern.bench.peers import Peer
from linkern.bench.tasks import Task
from linkern.bench.timing import Schedule

__all__ = ["Suite"]


@dataclass(frozen=True)
class Suite:
    """One benchmark of `linkern bench`.

    Parameters
    ----------
    name : {"cpu", "cuda", "generation"}
        Selects columns of tables and fields of files.
    command : str
        Writes files of the schema.
    schema : str or int
        Of these files.
    tasks, peers, limits, goals : tuple
        What is measured; limits are peers that take part in every task.
    quick_tasks : tuple of str
        Tasks of a quick run.
    schedule, quick_schedule : Schedule
        Turns of a run, and of a quick one.
    copied : int
        Bytes that the limit `COPY` copies.
    """

    name: str
    command: str
    schema: str | int
    tasks: tuple[Task, ...]
    peers: tuple[Peer, ...] = ()
    limits: tuple[Peer, ...] = ()
    goals: tuple[Goal, ...] = ()
    quick_tasks: tuple[str, ...] = ()
    schedule: Schedule = field(default_factory=Schedule)
    quick_schedule: Schedule = field(default_factory=Schedule)
    copied: int = 0

    def task(self, name: str) -> Task | None:
        """Return the task of a name, or None."""
        return next((task for task in self.tasks if task.name == name), None)

    def peer(self, name: str) -> Peer | None:
        """Return the peer or limit of a name, or None."""
        known = (*self.peers, *self.limits)
        return next((peer for peer in known if peer.name == name), None)
