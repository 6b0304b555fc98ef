"""CUDA clocks on a made-up GPU, which runs late and records its launches."""

import sys
from types import SimpleNamespace

import pytest

from linkern.bench.cuda.clocks import CuPyClock, DeviceCalls, Fastest, TorchClock


class Device:
    """A GPU whose time is the sum of what was launched, and the host far ahead."""

    def __init__(self):
        self.now, self.current, self.graph, self.launched = 0.0, None, None, []

    def launch(self, name, seconds):
        if self.graph is not None:
            self.graph.append((name, seconds))
        else:
            self.launched.append((name, self.current))
            self.now += seconds

    def play(self, graph):
        for name, seconds in graph:
            self.launch(name, seconds)

    def begin(self):
        assert self.graph is None
        self.graph = []

    def end(self):
        graph, self.graph = self.graph, None
        return graph


class Stream:
    def __init__(self, device):
        self.device = device

    def __enter__(self):
        self.device.current = self

    def __exit__(self, *_):
        self.device.current = None

    def synchronize(self):
        assert self.device.graph is None, "waited while capturing"

    def begin_capture(self):
        self.device.begin()

    def end_capture(self):
        graph = self.device.end()
        return SimpleNamespace(launch=lambda: self.device.play(graph))


class Event:
    def __init__(self, device):
        self.device, self.there = device, False

    def record(self):
        assert self.device.current is not None, "recorded on no stream"
        self.at = self.device.now

    def synchronize(self):
        self.there = True

    def elapsed_time(self, stop):
        assert stop.there, "the time was read before the device was done"
        return 1e3 * (stop.at - self.at)


def fake_cupy(device):
    return SimpleNamespace(
        cuda=SimpleNamespace(
            Stream=lambda non_blocking: Stream(device),
            Event=lambda: Event(device),
            get_elapsed_time=lambda start, stop: start.elapsed_time(stop),
        )
    )


class Graph:
    def __init__(self, device):
        self.device, self.kept = device, []

    def replay(self):
        self.device.play(self.kept)


class Capture:
    def __init__(self, graph, stream):
        self.graph, self.stream = graph, stream

    def __enter__(self):
        self.graph.device.begin()

    def __exit__(self, *_):
        self.graph.kept = self.graph.device.end()


def fake_torch(device):
    return SimpleNamespace(
        cuda=SimpleNamespace(
            Stream=lambda: Stream(device),
            Event=lambda enable_timing: Event(device),
            CUDAGraph=lambda: Graph(device),
            stream=lambda stream: stream,
            graph=Capture,
        )
    )


MADE_UP = {"cupy": (fake_cupy, CuPyClock), "torch": (fake_torch, TorchClock)}


def clock_on(monkeypatch, name, device):
    fake, clock = MADE_UP[name]
    monkeypatch.setitem(sys.modules, name, fake(device))
    return clock()


def timed(clock, calls, rounds):
    """Return the turns of calls that are prepared once."""
    prepared = DeviceCalls(clock, calls, lambda rows: [])
    return [prepared.turn(0.0) for _ in range(rounds)]


def law_calls_take_turns(monkeypatch, name, timing=timed):
    """Each of three sets as often as the others, and the time is that of one call."""
    device = Device()
    clock = clock_on(monkeypatch, name, device)
    calls = [lambda i=i: device.launch(i, 0.001 * (i + 1)) for i in range(3)]
    turns = timing(clock, calls, 5)
    assert [turn.seconds for turn in turns] == pytest.approx([0.002] * 5)
    assert [turn.by for turn in turns] == ["graph"] * 5
    names = [name for name, _ in device.launched]
    assert names == [0, 1, 2] * (len(names) // 3)
    assert len(names) >= 3 * 5 * 4  # 20 ms at least between two events
    assert None not in {stream for _, stream in device.launched}


def only_the_first(clock, calls, rounds):
    """Leave the inputs in a cache."""
    return timed(clock, calls[:1], rounds)


@pytest.mark.parametrize("name", MADE_UP)
def test_calls_take_turns(monkeypatch, name):
    law_calls_take_turns(monkeypatch, name)
    with pytest.raises(AssertionError):
        law_calls_take_turns(monkeypatch, name, only_the_first)


@pytest.mark.parametrize("name", MADE_UP)
def test_a_clock_read_too_early_is_caught(monkeypatch, name):
    monkeypatch.setattr(Event, "synchronize", lambda self: None)
    with pytest.raises(AssertionError, match="before the device was done"):
        law_calls_take_turns(monkeypatch, name)


@pytest.mark.parametrize("name", MADE_UP)
def test_calls_that_cannot_be_captured_are_timed_call_by_call(monkeypatch, name):
    device = Device()
    clock = clock_on(monkeypatch, name, device)

    def call():
        if device.graph is not None:
            raise RuntimeError
        device.launch("waits", 0.5)

    turns = timed(clock, [call], 3)
    assert [turn.seconds for turn in turns] == pytest.approx([0.5] * 3)
    assert turns[0].by == "events: no graph, RuntimeError"
    assert device.graph is None


@pytest.mark.parametrize("slow_in_a_graph", [True, False])
def test_the_fastest_way_counts(monkeypatch, slow_in_a_graph):
    """As on an H100, where a copy takes longer as a node of a graph."""
    device = Device()
    clock = clock_on(monkeypatch, "cupy", device)

    def copy():
        device.launch("copy", 0.3 if device.graph is None else 0.4)

    def kernel():
        device.launch("kernel", 0.35 if slow_in_a_graph else 0.2)

    ways = {
        "copyto": DeviceCalls(clock, [copy], lambda rows: [], graph=False),
        "kernel": DeviceCalls(clock, [kernel], lambda rows: []),
    }
    fastest = Fastest(ways)
    assert fastest.answer([0]) == []
    turn = fastest.turn(0.0)
    expected = (0.3, "events, copyto") if slow_in_a_graph else (0.2, "graph, kernel")
    by, _, both = turn.by.partition(": ")
    assert (turn.seconds, by) == (pytest.approx(expected[0]), expected[1])
    times = ("300000", "350000" if slow_in_a_graph else "200000")
    assert both == "copyto {} us, kernel {} us".format(*times)
    assert {name for name, _ in device.launched} == {"copy", "kernel"}
