"""CUDA events: the time that a GPU itself takes, for a graph if there is one.

The host's clock would time the launches. A graph is launched at once, however many
kernels it has; a call that cannot be captured is launched repeatedly instead.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib import import_module
from typing import Any, Protocol

from numpy.typing import NDArray

from linkern.bench.clocks import Peak, Turn

__all__ = ["Clock", "CuPyClock", "DeviceCalls", "Fastest", "TorchClock"]

Real = NDArray[Any]
Call = Callable[[], Any]

# Seconds between two events at least, and the most launches of a short graph.
_LEAST_BETWEEN_EVENTS, _MOST_LAUNCHES = 0.02, 1000


class Clock(Protocol):
    """A stream of a GPU, and its time."""

    def run(self, call: Call) -> Any:
        """Call on the stream, wait for it, and return its result."""

    def captured(self, call: Call) -> Call:
        """Return a function that launches again all that a call launches."""

    def seconds(self, call: Call) -> float:
        """Return the time between two events around a call."""


class DeviceCalls:
    """Calls on a GPU, timed in turns by its own clock.

    They are the same on different arrays, so that no cache holds the inputs of the next
    one, and do not wait. `answer` is that of `Prepared`. Without a `graph` calls are
    launched one by one.
    """

    def __init__(
        self,
        clock: Clock,
        calls: Sequence[Call],
        answer: Callable[[list[int]], list[Real]],
        *,
        graph: bool = True,
    ) -> None:
        self.clock, self.calls, self.answer = clock, tuple(calls), answer
        self._by, self._graph = "", graph
        self._play: Call = self._rotation
        self._results: list[Any] = [None] * len(self.calls)
        self._count = 1

    def _rotation(self) -> None:
        for i, call in enumerate(self.calls):
            # Freed first, so that each call has the same memory.
            self._results[i] = None
            self._results[i] = call()

    def _capture(self) -> None:
        clock = self.clock
        for _ in range(2):  # compiles, tunes, and fills the memory pool
            clock.run(self._rotation)
        try:
            self._play, self._by = self._rotation, "events"
            if self._graph:
                self._play, self._by = clock.captured(self._rotation), "graph"
            clock.run(self._play)
        except Exception as error:  # whatever a library raises while it is captured
            self._play = self._rotation
            self._by = f"events: no graph, {type(error).__name__}"
            clock.run(self._play)
        least = _LEAST_BETWEEN_EVENTS / _MOST_LAUNCHES
        seconds = max(clock.seconds(self._play), least)
        self._count = min(_MOST_LAUNCHES, math.ceil(_LEAST_BETWEEN_EVENTS / seconds))

    def turn(self, window: float) -> Turn:  # noqa: ARG002 -- events set their own
        """Return the time of one call between two events; the first turn captures."""
        if not self._by:
            self._capture()

        def several() -> None:
            for _ in range(self._count):
                self._play()

        count = self._count * len(self.calls)
        return Turn(self.clock.seconds(several) / count, count, by=self._by)

    def peak(self, *, traced: bool) -> Peak:  # noqa: ARG002 -- pools hide it
        """Return that the memory is unknown."""
        return Peak(None)


class Fastest:
    """Several ways to do the same, of which the fastest counts in each turn.

    Parameters
    ----------
    ways : mapping of str to DeviceCalls
        By name.
    """

    def __init__(self, ways: Mapping[str, DeviceCalls]) -> None:
        self.ways = dict(ways)

    def answer(self, rows: list[int]) -> list[Real]:
        """Return the answer of the first way, after a call of each."""
        first, *_ = [each.answer(rows) for each in self.ways.values()]
        return first

    def turn(self, window: float) -> Turn:
        """Return the shortest of one turn of each, with its name."""
        turns = {name: each.turn(window) for name, each in self.ways.items()}
        name = min(turns, key=lambda name: turns[name].seconds)
        all_ways = ", ".join(f"{x} {1e6 * turns[x].seconds:.0f} us" for x in turns)
        return replace(turns[name], by=f"{turns[name].by}, {name}: {all_ways}")

    def peak(self, *, traced: bool) -> Peak:
        """Return that the memory is unknown."""
        return next(iter(self.ways.values())).peak(traced=traced)


class _StreamClock(ABC):
    """A stream of a library: the two below differ in their names of the same things."""

    _stream: Any

    @abstractmethod
    def _current(self) -> AbstractContextManager[Any]:
        """Return a context in which calls go to the stream."""

    def run(self, call: Call) -> Any:
        """Call on the stream, wait for it, and return its result."""
        with self._current():
            result = call()
        self._stream.synchronize()
        return result

    def _between(self, start: Any, stop: Any, call: Call) -> None:
        with self._current():
            start.record()
            call()
            stop.record()
        stop.synchronize()


class CuPyClock(_StreamClock):
    """A stream of CuPy."""

    def __init__(self) -> None:
        self._cuda = import_module("cupy").cuda
        self._stream = self._cuda.Stream(non_blocking=True)

    def _current(self) -> AbstractContextManager[Any]:
        stream: AbstractContextManager[Any] = self._stream
        return stream

    def captured(self, call: Call) -> Call:
        """Return a function that launches again all that a call launches."""
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
        self._between(start, stop, call)
        return float(self._cuda.get_elapsed_time(start, stop)) / 1e3


class TorchClock(_StreamClock):
    """A stream of PyTorch."""

    def __init__(self) -> None:
        self._cuda = import_module("torch").cuda
        self._stream = self._cuda.Stream()

    def _current(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self._cuda.stream(self._stream)
        return context

    def captured(self, call: Call) -> Call:
        """Return a function that launches again all that a call launches.

        The stream is that of everything else: gradients run where values did.
        """
        graph = self._cuda.CUDAGraph()
        with self._cuda.graph(graph, stream=self._stream):
            call()
        play: Call = graph.replay
        return play

    def seconds(self, call: Call) -> float:
        """Return the time between two events around a call."""
        start, stop = (self._cuda.Event(enable_timing=True) for _ in range(2))
        self._between(start, stop, call)
        return float(start.elapsed_time(stop)) / 1e3
