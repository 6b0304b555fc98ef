"""Prepared calls, and the host's clock; `linkern.bench.cuda.clocks` has CUDA's."""

import gc
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from linkern.bench.memory import peak_by_growth, peak_by_tracing

__all__ = ["HostCall", "Peak", "Prepared", "Turn", "timed"]

Real = NDArray[Any]
Call = Callable[[], Any]

# Repetitions within a turn, whatever the clock says.
_MOST = 2000
_STAT = Path("/proc/stat")
# Seconds of a turn below which the hundredths that the system counts in are too coarse.
_TICKS = 0.08


@dataclass(frozen=True)
class Turn:
    """One turn."""

    # Of one call: the median of the turn.
    seconds: float
    # Number of timed calls.
    calls: int
    # Share of all cores that other processes used meanwhile; 0 if not known.
    foreign: float = 0.0
    # On a GPU: "graph", or "events" and why there was no graph.
    by: str = ""
    # Of a generator: tokens that were timed together, and the seconds of each span.
    spans: tuple[tuple[int, int], ...] = ()
    span_seconds: tuple[float, ...] = ()


@dataclass(frozen=True)
class Peak:
    """The most bytes of a call beside its inputs, and the bytes kept between tokens."""

    extra: int | None
    held: int | None = None


class Prepared(Protocol):
    """A peer that is ready for one task at one length."""

    def answer(self, rows: list[int]) -> list[Real]:
        """Call once and return some tokens of all outputs, ``(B, H, rows, dim)``."""

    def turn(self, window: float) -> Turn:
        """Repeat the call for some seconds."""

    def peak(self, *, traced: bool) -> Peak:
        """Return the memory of one more call."""


def timed(
    call: Call,
    window: float,
    clock: Callable[[], float] = time.perf_counter,
    *,
    after: Callable[[Any], object] | None = None,
) -> Turn:
    """Repeat a call for some seconds of the host's clock; one call is always made.

    `after` gets the result of each call, and its time is not counted.

    The first call of a turn wakes up the processor and fills its caches: it does not
    count where there are three or more.
    """
    taken: list[float] = []
    others, begin = _others_seconds(), clock()
    end = begin
    while len(taken) < _MOST and (not taken or end - begin < window):
        start = clock()
        result = call()
        end = clock()
        taken.append(end - start)
        if after is not None:
            after(result)
        del result  # as if nobody had looked at it
    counted = taken[1:] if len(taken) >= 3 else taken
    foreign = 0.0
    if others is not None and end - begin >= _TICKS:
        used = (_others_seconds() or 0.0) - others
        foreign = max(0.0, used / (end - begin) / (os.cpu_count() or 1))
    return Turn(median(counted), len(counted), foreign)


def _others_seconds() -> float | None:
    """Return the processor seconds of all other processes so far; None if not known."""
    try:
        fields = _STAT.read_text(encoding="ascii").partition("\n")[0].split()[1:9]
    except OSError:
        return None
    user, nice, system, _idle, _waiting, irq, softirq, stolen = map(int, fields)
    ticks = user + nice + system + irq + softirq + stolen
    return ticks / os.sysconf("SC_CLK_TCK") - time.process_time()


@dataclass(frozen=True)
class HostCall:
    """A call on the host, which returns when its result is complete."""

    call: Call
    # From its result to NumPy arrays ``(B, H, T, dim)``: the output, or the output and
    # the gradients of query, key and value.
    read: Callable[[Any], list[Real]]

    def answer(self, rows: list[int]) -> list[Real]:
        """Call once and return some tokens of all outputs, in float64."""
        arrays = self.read(self.call())
        return [np.asarray(x[..., rows, :], "float64") for x in arrays]

    def turn(self, window: float) -> Turn:
        """Repeat the call for some seconds."""
        gc.collect()
        return timed(self.call, window)

    def peak(self, *, traced: bool) -> Peak:
        """Return the most memory of one more call beside inputs and outputs."""
        results: list[Any] = [None]

        def keep() -> None:
            results[0] = self.call()

        peak = (peak_by_tracing if traced else peak_by_growth)(keep)
        returned = sum(x.nbytes for x in self.read(results[0]))
        return Peak(None if peak is None else max(0, peak - returned))
