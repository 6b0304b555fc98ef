"""Processes of all ranks of one size of world: start, call, and what became of each."""

import os
import re
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from linkern.testing.errors import TargetDied, TargetRaised, UsageError
from linkern.testing.target.answers import limits_of, usable_opened, usable_reply
from linkern.testing.target.child import CALM_THREADS, SMALL, Child, printable
from linkern.testing.target.protocol import Call, Raised, Refused, Reply, TargetConfig
from linkern.testing.target.wire import Limits
from linkern.testing.target.worker import Opened

__all__ = ["World"]

WORKER = "linkern.testing.target.ranks.worker"
# Seconds between looks at ranks that have not answered.
LOOK = 0.01
# Seconds that ranks have to answer once one has failed, and to write where they are.
GRACE, WRITING = 1.0, 2.0
_FRAME = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>\S+)\n')
# Functions of torch that stand between a collective and its caller.
_WRAPPERS = ("wrapper", "_fn", "decorate_context", "inner")


class World:
    """One process for each rank, kept alive from call to call.

    Parameters
    ----------
    ranks : int
        The number of ranks.
    """

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._children: list[Child] = []
        self._folder = ""
        self._meetings = 0
        self._in_step = False

    def open(self, config: TargetConfig, timeout: float) -> Opened:
        """Join all ranks in a new group, and load the target on each.

        Raises
        ------
        UsageError
            If it cannot be loaded on one of them.
        """
        if not self._children:
            self._folder = tempfile.mkdtemp(prefix="linkern-ranks-")
            port = _free_port()
            self._children = [
                Child(WORKER, _environment(rank, self.ranks, port))
                for rank in range(self.ranks)
            ]
        self._meetings += 1
        meeting = Path(self._folder) / f"meeting-{self._meetings}"
        same = {**vars(config), "rendezvous": str(meeting)}
        requests = [TargetConfig(**same)] * self.ranks
        limits = [SMALL] * self.ranks
        answers = self._asked(requests, (Opened, Refused), limits, timeout)
        refusals = [x for x in answers if isinstance(x, Refused)]
        if refusals:
            self.end()
            raise UsageError(printable(refusals[0].message) + _where(answers))
        try:
            if None in answers or any(isinstance(x, TargetDied) for x in answers):
                reason = self._what_became(answers, timeout)
                msg = f'loading "{config.target}" on ranks failed: {reason}.'
                raise UsageError(msg)
            opened = [usable_opened(answer) for answer in answers]
            differences = _differences(opened)
            if differences:
                msg = f'"{config.target}" must be the same on all ranks; {differences}.'
                raise UsageError(msg)
        except (UsageError, TargetDied):
            self.end()
            raise
        self._in_step = True
        return opened[0]

    @property
    def is_ready(self) -> bool:
        """True if all ranks are alive and in step."""
        return self._in_step

    def call(
        self, calls: Sequence[Call], config: TargetConfig, timeout: float
    ) -> list[Reply]:
        """Call the target on all ranks at once.

        Raises
        ------
        TargetRaised
            If it raised on a rank, and returned or raised on all others.
        TargetDied
            If a rank ended its process, or did not return.
        """
        limits = [limits_of(call, config) for call in calls]
        answers = self._asked(calls, (Reply, Raised), limits, timeout)
        if None in answers or any(isinstance(x, TargetDied) for x in answers):
            reason = self._what_became(answers, timeout)
            self.end()
            raise TargetDied(reason, hung=None in answers)
        if all(isinstance(x, Reply) for x in answers):
            pairs = zip(answers, calls, strict=True)
            try:
                return [usable_reply(reply, call, config) for reply, call in pairs]
            except TargetDied:
                self.end()
                raise
        self.leave()
        raise TargetRaised(_raised(answers))

    def leave(self) -> None:
        """Have the group and the target opened again before the next call."""
        self._in_step = False

    def end(self) -> None:
        """End all processes."""
        for child in self._children:
            child.end()
        self._children, self._in_step = [], False
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = ""

    def _asked(
        self,
        requests: Sequence[Any],
        answers: tuple[type, ...],
        limits: Sequence[Limits],
        timeout: float,
    ) -> list[Any]:
        """Return the answer of each rank: its death, or None if there is none in time.

        Once a rank has failed, all others have little time left.
        """
        pairs = zip(self._children, requests, limits, strict=True)
        for child, request, limit in pairs:
            child.post(request, answers, limit)
        received: list[Any] = [None] * self.ranks
        deadline = time.monotonic() + timeout
        while None in received and time.monotonic() < deadline:
            for rank, child in enumerate(self._children):
                if received[rank] is not None:
                    continue
                try:
                    received[rank] = child.take(LOOK)
                except TargetDied as death:
                    received[rank] = death
                if isinstance(received[rank], Raised | Refused | TargetDied):
                    deadline = min(deadline, time.monotonic() + GRACE)
        return received

    def _what_became(self, answers: Sequence[Any], timeout: float) -> str:
        """Return what became of every rank, where one did not return."""
        waiting = [rank for rank, answer in enumerate(answers) if answer is None]
        places = self._places(waiting)
        each: dict[str, list[str]] = {"died": [], "raised": [], "alive": []}
        for rank, answer in enumerate(answers):
            if isinstance(answer, TargetDied):
                each["died"].append(f"rank {rank} {answer.reason}")
            elif isinstance(answer, Raised):
                said = printable(answer.message)
                each["raised"].append(f"rank {rank} raised {said}")
            else:
                said = "returned" if answer else places[rank]
                each["alive"].append(f"rank {rank} {said}")
        failed = any(isinstance(x, Raised | TargetDied) for x in answers)
        what = "failed" if failed else f"did not return within {timeout:g} s"
        listed = "; ".join(chain(*each.values()))
        return f"{what} on {self.ranks} ranks: {listed}"

    def _places(self, ranks: Sequence[int]) -> Mapping[int, str]:
        """Return what some ranks do now, by the line of the target that does it."""
        for rank in ranks:
            self._children[rank].interrupt(signal.SIGUSR1)
        until, places = time.monotonic() + WRITING, dict.fromkeys(ranks, "")
        while not all(places.values()) and time.monotonic() < until:
            time.sleep(LOOK)
            for rank in ranks:
                places[rank] = place_in(self._children[rank].printed)
        return {rank: place or "did not return" for rank, place in places.items()}


def place_in(written: str) -> str:
    r"""Return what a rank does, from the stack that it wrote, innermost frame first.

    No text if it has not written as far as the frame of the target.

    Examples
    --------
    >>> frames = (
    ...     '  File "/lib/torch/distributed/distributed_c10d.py", line 9 in all_gather',
    ...     '  File "/lib/torch/distributed/c10d_logger.py", line 8 in wrapper',
    ...     '  File "/home/kernels/ring.py", line 12 in kernel',
    ... )
    >>> place_in("\n".join(("Current thread 0x1:", *frames, "")))
    'waits in all_gather (ring.py:12)'
    """
    last = written.rpartition("Current thread")[2]
    called = ""
    for frame in _FRAME.finditer(last):
        file, name = Path(frame["file"]), frame["name"]
        if "torch" in file.parts:
            called = called if name in _WRAPPERS else name
        elif "ranks" in file.parts and "linkern" in file.parts:
            return "waits for the state of another rank"
        else:
            what = f"waits in {called}" if called else f"runs {printable(name)}"
            return f"{what} ({printable(file.name)}:{frame['line']})"
    return ""


def _raised(answers: Sequence[Any]) -> str:
    """Return what all ranks raised, in one line."""
    said = {
        rank: printable(answer.message)
        for rank, answer in enumerate(answers)
        if isinstance(answer, Raised)
    }
    first = next(iter(said.values()))
    if len(said) == len(answers) and len({*said.values()}) == 1:
        return first
    others = "".join(
        f"; rank {rank} {'raised ' + said[rank] if rank in said else 'returned'}"
        for rank in range(len(answers))
        if rank != min(said)
    )
    return f"{first} on rank {min(said)} of {len(answers)}{others}"


def _where(answers: Sequence[Any]) -> str:
    """Return the ranks that refuse a target, in words, if others load it."""
    ranks = [r for r, answer in enumerate(answers) if isinstance(answer, Refused)]
    if len(ranks) == len(answers):
        return ""
    return f" ({'ranks' if ranks[1:] else 'rank'} {_listed(ranks)} of {len(answers)})"


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))


def _differences(opened: Sequence[Opened]) -> str:
    """Return the ranks that loaded another target than rank 0, in words."""
    first = opened[0]
    others = [rank for rank, one in enumerate(opened) if one != first]
    if not others:
        return ""
    other, ours, theirs = (
        opened[others[0]],
        first.interface,
        opened[others[0]].interface,
    )
    where = f"{'ranks' if others[1:] else 'rank'} {_listed(others)}"
    where += f" of {len(opened)}"
    if other.library != first.library:
        names = other.library.name, first.library.name
        return f"on {where} it takes arrays of {names[0]}, on rank 0 of {names[1]}"
    if theirs.keywords != ours.keywords:
        names = ", ".join(sorted(theirs.keywords)), ", ".join(sorted(ours.keywords))
        return f"on {where} its parameters are ({names[0]}), on rank 0 ({names[1]})"
    fields = [name for name, x in vars(theirs).items() if x != vars(ours)[name]]
    what = ", ".join(fields) or "the library that its file imports"
    return f"{where} differs from rank 0 in {what}"


def _environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """Return the environment that `torchrun` would give to a rank."""
    launched = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "GROUP_RANK": 0,
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": ranks,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    # Several processes share the cores.
    calm = {**CALM_THREADS, "OMP_NUM_THREADS": "1"}
    return calm | dict(os.environ) | {name: str(x) for name, x in launched.items()}


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
