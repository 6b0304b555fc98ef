"""Worker of one peer: it prepares the call, answers, repeats and times it.

Each peer has a process of its own, because the threads of one library go on spinning
after a call and would take a core from the next. Orders and replies are messages of
`linkern.testing.target.wire`: data alone, since a peer can be anybody's code.
"""

import gc
import sys
import traceback
import warnings
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.bench.candidates import Candidate, Kept
from linkern.bench.clocks import Peak, Prepared, Turn
from linkern.bench.peers import Peer
from linkern.bench.tasks import Task
from linkern.testing.target.protocol import Raised
from linkern.testing.target.wire import OWN, read_message, read_prefix, write
from linkern.testing.target.worker import streams

__all__ = ["ORDERS", "LocalWorker", "Order", "main"]


@dataclass(frozen=True)
class Prepare:
    """Order of `LocalWorker.prepare`."""

    peer: Peer
    task: Task
    length: int
    seed: int
    rows: list[int]


@dataclass(frozen=True)
class TakeTurn:
    """Order of `LocalWorker.turn`."""

    window: float


@dataclass(frozen=True)
class MeasurePeak:
    """Order of `LocalWorker.peak`."""


@dataclass(frozen=True)
class HandOver:
    """Order of `LocalWorker.kept`."""


@dataclass(frozen=True)
class CallAgain:
    """Order of `LocalWorker.again`."""

    seed: int


@dataclass(frozen=True)
class Release:
    """Order of `LocalWorker.release`."""


@dataclass(frozen=True)
class Rows:
    """Reply of a peer that is prepared: some tokens of all outputs."""

    arrays: list[NDArray[Any]]


@dataclass(frozen=True)
class Evidence:
    """Reply of a candidate: parts of outputs that were kept."""

    kept: list[Kept]


@dataclass(frozen=True)
class Released:
    """Reply of a worker that holds nothing."""


@dataclass(frozen=True)
class Order:
    """One order: the messages of its arguments and of its reply."""

    request: type
    reply: type


# Characters of an exception that are passed on.
_LONGEST = 500
ORDERS = {
    "prepare": Order(Prepare, Rows),
    "turn": Order(TakeTurn, Turn),
    "peak": Order(MeasurePeak, Peak),
    "kept": Order(HandOver, Evidence),
    "again": Order(CallAgain, Evidence),
    "release": Order(Release, Released),
}


class LocalWorker:
    """A worker in this process: one prepared peer, and the orders that concern it."""

    def __init__(self, _threads: int = 1) -> None:
        self.prepared: Prepared | None = None
        self.traced = False

    def ask(self, order: str, *arguments: Any) -> Any:
        """Return the reply to an order."""
        return getattr(self, order)(*arguments)

    def close(self) -> None:
        """Free what is held for a task."""
        self.release()

    def prepare(
        self, peer: Any, task: Any, length: int, seed: int, rows: list[int]
    ) -> list[NDArray[np.float64]]:
        """Make inputs and call ready; call once and return these rows, if any."""
        self.release()
        self.prepared, self.traced = peer.ready(task, length, seed), peer.traced
        assert self.prepared is not None
        return self.prepared.answer(rows) if rows else []

    def turn(self, window: float) -> Turn:
        """Repeat the call."""
        assert self.prepared is not None
        return self.prepared.turn(window)

    def peak(self) -> Peak:
        """Return the memory of one more call."""
        assert self.prepared is not None
        return self.prepared.peak(traced=self.traced)

    def kept(self) -> Evidence:
        """Return what was kept of the last turn of a candidate."""
        assert isinstance(self.prepared, Candidate)
        return Evidence(self.prepared.kept())

    def again(self, seed: int) -> Evidence:
        """Return what a candidate makes of new inputs, twice."""
        assert isinstance(self.prepared, Candidate)
        return Evidence(self.prepared.again(seed))

    def release(self) -> None:
        """Free inputs and call, and the pools of a GPU."""
        self.prepared = None
        gc.collect()
        if "cupy" in sys.modules:
            import_module("cupy").get_default_memory_pool().free_all_blocks()
        if "torch" in sys.modules:
            import_module("torch").cuda.empty_cache()


def main() -> None:
    """Answer orders until they end."""
    worker = LocalWorker()
    orders, replies = streams()
    names = {order.request: name for name, order in ORDERS.items()}
    warnings.simplefilter("ignore")
    while True:
        try:
            prefix = read_prefix(orders)
        except EOFError:
            return
        request = read_message(orders, prefix, names, OWN)
        arguments = [getattr(request, field.name) for field in fields(request)]
        try:
            reply = worker.ask(names[type(request)], *arguments)
        except Exception as error:  # whatever a peer raises
            traceback.print_exc()
            first, _, _ = str(error).partition("\n")
            reply = Raised(f"{type(error).__name__}: {first}"[:_LONGEST])
        write(replies, _message(reply), prefix.ticket)


def _message(reply: Any) -> Any:
    """Return a reply as a message."""
    if isinstance(reply, list):
        return Rows(reply)
    return Released() if reply is None else reply
