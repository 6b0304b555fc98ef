"""Time as the GPU itself takes it: between two events, of a graph if there is one.

The host's clock would time the launches. A graph is launched at once, however many
kernels it has; what cannot be captured is launched call by call, and is said to be.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

__all__ = ["Clock", "CuPyClock", "Taken", "TorchClock", "timed"]

# Seconds that lie between two events at least, and how often a short graph is played.
_LEAST, _MOST = 0.02, 1000

Call = Callable[[], Any]


class Clock(Protocol):
    """A stream of a GPU, and its time."""

    def run(self, call: Call) -> Any:
        """Call on the stream, wait for it, and return what was returned."""

    def captured(self, call: Call) -> Call:
        """Return what plays again all that a call launches."""

    def seconds(self, call: Call) -> float:
        """Return the time between two events around a call."""


@dataclass(frozen=True)
class Taken:
    """What was timed.

    Parameters
    ----------
    seconds : tuple of float
        Of one call, sample by sample.
    by : str
        "graph", or "events" and why there was no graph.
    """

    seconds: tuple[float, ...]
    by: str


def timed(clock: Clock, calls: Sequence[Call], rounds: int) -> Taken:
    """Time calls in turns.

    Parameters
    ----------
    clock : Clock
        Where they run.
    calls : sequence of callable
        The same on different arrays, so that no cache holds what the next one needs.
    rounds : int
        How many samples.

    Returns
    -------
    Taken
        Of one call.
    """
    kept: list[Any] = [None] * len(calls)

    def rotation() -> None:
        for i, call in enumerate(calls):
            kept[i] = None  # its memory first, so that each has always the same
            kept[i] = call()

    for _ in range(2):  # compiles, tunes, and fills the pool of memory
        clock.run(rotation)
    try:
        play, by = clock.captured(rotation), "graph"
        clock.run(play)
    except Exception as error:  # whatever a library raises while it is captured
        play, by = rotation, f"events: no graph, {type(error).__name__}"
        clock.run(rotation)
    count = min(_MOST, math.ceil(_LEAST / max(clock.seconds(play), _LEAST / _MOST)))

    def several() -> None:
        for _ in range(count):
            play()

    found = [clock.seconds(several) / count / len(calls) for _ in range(rounds)]
    return Taken(tuple(found), by)


class CuPyClock:
    """A stream of CuPy."""

    def __init__(self) -> None:
        self._cuda = import_module("cupy").cuda
        self._stream = self._cuda.Stream(non_blocking=True)

    def run(self, call: Call) -> Any:
        """Call on the stream, wait for it, and return what was returned."""
        with self._stream:
            found = call()
        self._stream.synchronize()
        return found

    def captured(self, call: Call) -> Call:
        """Return what plays again all that a call launches."""
        with self._stream:
            self._stream.begin_capture()
            try:
                call()
            finally:  # a stream that captures can do nothing else
                graph = self._stream.end_capture()
        play: Call = graph.launch
        return play

    def seconds(self, call: Call) -> float:
        """Return the time between two events around a call."""
        start, stop = self._cuda.Event(), self._cuda.Event()
        with self._stream:
            start.record()
            call()
            stop.record()
        stop.synchronize()
        return float(self._cuda.get_elapsed_time(start, stop)) / 1e3


class TorchClock:
    """A stream of PyTorch."""

    def __init__(self) -> None:
        self._cuda = import_module("torch").cuda
        self._stream = self._cuda.Stream()

    def run(self, call: Call) -> Any:
        """Call on the stream, wait for it, and return what was returned."""
        with self._cuda.stream(self._stream):
            found = call()
        self._stream.synchronize()
        return found

    def captured(self, call: Call) -> Call:
        """Return what plays again all that a call launches.

        On the same stream as everything else: gradients run where values did.
        """
        graph = self._cuda.CUDAGraph()
        with self._cuda.graph(graph, stream=self._stream):
            call()
        play: Call = graph.replay
        return play

    def seconds(self, call: Call) -> float:
        """Return the time between two events around a call."""
        start, stop = (self._cuda.Event(enable_timing=True) for _ in range(2))
        with self._cuda.stream(self._stream):
            start.record()
            call()
            stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) / 1e3
