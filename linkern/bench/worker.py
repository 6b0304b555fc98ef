"""The process of one contestant: it prepares calls, repeats them and says how long.

Each contestant has a process of its own, because the threads of one library go on
spinning after a call and would take a core from the next. Orders come as pickles
through standard input; replies go back through standard output.
"""

import gc
import os
import pickle
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.bench.memory import peak_by_growth, peak_by_tracing

__all__ = ["First", "Prepared", "Timed", "Worker", "answer", "main", "timed"]

Real = NDArray[Any]

# Repetitions within a turn, whatever the clock says.
_MOST = 2000
_STAT = Path("/proc/stat")
# Seconds of a turn below which the hundredths that the system counts in say nothing.
_TICKS = 0.08


@dataclass(frozen=True)
class Prepared:
    """A call that is ready to be repeated.

    Parameters
    ----------
    call : callable
        Without arguments; it waits until the result is there.
    read : callable
        From its result to NumPy arrays ``(B, H, T, dim)``: the output, or the output
        and the gradients of query, key and value.
    """

    call: Callable[[], Any]
    read: Callable[[Any], list[Real]]


@dataclass(frozen=True)
class First:
    """What came of the first call.

    Parameters
    ----------
    rows : list of array
        Some rows of all that it returned, float64.
    returned_bytes : int
        Of all that it returned.
    """

    rows: list[Real]
    returned_bytes: int


@dataclass(frozen=True)
class Timed:
    """One turn.

    Parameters
    ----------
    seconds : float
        Of one call: the median of the turn.
    calls : int
        How many were timed.
    foreign : float
        Share of all cores that other processes used meanwhile; 0 if not known.
    """

    seconds: float
    calls: int
    foreign: float


def timed(
    call: Callable[[], Any],
    window: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Timed:
    """Repeat a call for some seconds.

    Parameters
    ----------
    call : callable
        What is timed.
    window : float
        Seconds that the turn lasts at least; one call is always made. The first call
        of a turn wakes up the processor and fills its caches: where there are three or
        more, it does not count.
    clock : callable
        Time in seconds.

    Returns
    -------
    Timed
        Of this turn.
    """
    taken: list[float] = []
    others, begin = _others_seconds(), clock()
    end = begin
    while len(taken) < _MOST and (not taken or end - begin < window):
        start = clock()
        call()
        end = clock()
        taken.append(end - start)
    counted = taken[1:] if len(taken) >= 3 else taken
    foreign = 0.0
    if others is not None and end - begin >= _TICKS:
        used = (_others_seconds() or 0.0) - others
        foreign = max(0.0, used / (end - begin) / (os.cpu_count() or 1))
    return Timed(median(counted), len(counted), foreign)


def _others_seconds() -> float | None:
    """Return the processor seconds that others have used so far; None if not known."""
    try:
        fields = _STAT.read_text(encoding="ascii").partition("\n")[0].split()[1:9]
    except OSError:
        return None
    user, nice, system, _idle, _waiting, irq, softirq, stolen = map(int, fields)
    ticks = user + nice + system + irq + softirq + stolen
    return ticks / os.sysconf("SC_CLK_TCK") - time.process_time()


@dataclass
class Worker:
    """What the process holds between two orders."""

    prepared: Prepared | None = None
    traced: bool = False

    def prepare(
        self,
        peer: Any,
        task: Any,
        length: int,
        seed: int,
        rows: list[int],
        called: bool = True,
    ) -> First:
        """Make the inputs and the call, call once, and return some rows.

        If not `called`, nothing is called, and nothing returned.
        """
        # Not imported above: whatever a peer imports must not be there for another.
        inputs = import_module("linkern.bench.tasks").Inputs.drawn(task, length, seed)
        module, _, name = peer.prepare.partition(":")
        function = getattr(import_module(f"linkern.bench.peers.{module}"), name)
        self.prepared, self.traced = None, peer.traced
        gc.collect()
        self.prepared = function(inputs, task, **peer.options)
        if not called:
            return First([], 0)
        arrays = self.prepared.read(self.prepared.call())
        chosen = [np.asarray(x[..., rows, :], "float64") for x in arrays]
        return First(chosen, sum(x.nbytes for x in arrays))

    def turn(self, window: float) -> Timed:
        """Repeat the call."""
        assert self.prepared is not None
        gc.collect()
        return timed(self.prepared.call, window)

    def peak(self) -> int | None:
        """Return the most memory that one call takes beside its inputs, in bytes."""
        assert self.prepared is not None
        measured = peak_by_tracing if self.traced else peak_by_growth
        return measured(self.prepared.call)

    def release(self) -> None:
        """Let go of inputs and call."""
        self.prepared = None
        gc.collect()


def main() -> None:
    """Answer orders until there are no more."""
    answer(Worker())


def answer(worker: Any) -> None:
    """Let a worker answer orders, each the name of a method and its arguments."""
    orders, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever libraries print is no reply
    warnings.simplefilter("ignore")
    while True:
        try:
            name, arguments = pickle.load(orders)
        except EOFError:
            return
        try:
            reply: tuple[bool, Any] = (True, getattr(worker, name)(*arguments))
        except Exception as error:  # whatever a peer raises
            traceback.print_exc()
            first, _, _ = str(error).partition("\n")
            reply = (False, f"{type(error).__name__}: {first}")
        pickle.dump(reply, replies)
        replies.flush()
