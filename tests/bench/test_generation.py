"""Generators and turns, with a clock that the generators wind themselves."""

import numpy as np
import pytest

from linkern.bench import memory
from linkern.bench.generation import generator
from linkern.bench.generation.generator import Generator, Spans
from linkern.bench.runner import run
from linkern.bench.tasks import Task
from linkern.bench.timing import Schedule, Spread, interleaved
from linkern.bench.worker import LocalWorker


class Clock:
    """A clock that moves only when it is told to."""

    def __init__(self):
        self.now, self.slept = 0.0, 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.slept += seconds
        self.now += seconds  # pauses must not be counted


@pytest.fixture
def clock(monkeypatch):
    made_up = Clock()
    monkeypatch.setattr(
        *(generator, "Spans", lambda *words: Spans(*words, clock=made_up))
    )
    return made_up


def costing(clock, name, cost, **options):
    """Return a generator whose token at position i costs ``cost(i)`` seconds."""
    generated = []

    def start(length):
        clock.now += 1000.0  # preparing must not be counted
        return {"length": length, "at": 0}

    def generate(session, start, stop):
        assert 0 <= start < stop <= session["length"]
        generated.append((session["length"], start, stop))
        clock.now += sum(cost(i) for i in range(start, stop))

    hooks = {"start": start, "generate": generate, "held": lambda session: 7}
    return Generator(name, name, **hooks, **options), generated


def measure(generators, lengths, schedule, samples=12, **options):
    task = Task("t", "", "generate", (), samples=samples, baseline="state")
    options = {"start": LocalWorker, **options}
    parts = run([(task, lengths)], generators, schedule, **options)
    return [row for part in parts for row in part]


def schedule(clock, **options):
    defaults = {"budget": 1e9, "window": 0}
    return Schedule(clock=clock, sleep=clock.sleep, **{**defaults, **options})


def test_a_state_is_run_from_first_to_last(clock):
    made, generated = costing(clock, "state", lambda i: 2.0 + i)
    (row,) = measure([made], [200], schedule(clock, rounds=2))
    assert row.seconds == Spread(20300, 20300, 20300, 2)
    assert not row.sampled
    assert row.remark == ""
    # Sessions of another length warm up; the last token is for memory.
    turns = [x for x in generated if x[0] == 200][:-1]
    tokens = [i for _, start, stop in turns for i in range(start, stop)]
    assert tokens == 2 * list(range(200))
    assert generated[-1] == (200, 199, 200)
    assert row.held_bytes == 7
    # On a line, the mean cost of a span is that of its middle.
    each = [
        x / (stop - start)
        for (start, stop), x in zip(row.spans, row.span_seconds, strict=True)
    ]
    middles = [(start + stop + 1) / 2 for start, stop in row.spans]
    assert each == pytest.approx([1 + x for x in middles])


def test_recomputing_is_sampled_and_summed(clock):
    made, generated = costing(clock, "again", lambda i: 3.0 * i, recomputes=True)
    (row,) = measure([made], [1000], schedule(clock, rounds=1), samples=5)
    assert row.sampled
    assert len(row.spans) == 5
    assert row.seconds.median == pytest.approx(3 * 999 * 1000 / 2, rel=1e-12)
    assert sum(x[0] == 1000 for x in generated) == 6


def test_short_lengths_are_exact_even_if_recomputed(clock):
    made, _ = costing(clock, "again", lambda i: i**3, recomputes=True)
    (row,) = measure([made], [8], schedule(clock, rounds=1), samples=12)
    assert not row.sampled
    assert row.seconds.median == sum(i**3 for i in range(8))


def test_a_length_that_is_too_long_leaves_out_one_peer_only(clock):
    short, _ = costing(clock, "short", lambda i: 1.0, longest=10)
    other, _ = costing(clock, "other", lambda i: 1.0)
    rows = measure([short, other], [10, 11], schedule(clock, rounds=1))
    names = [(row.peer, row.length) for row in rows if row.seconds is not None]
    assert names == [("short", 10), ("other", 10), ("other", 11)]
    (left_out,) = (row for row in rows if row.seconds is None)
    assert (left_out.peer, left_out.remark) == ("short", "left out above 10 tokens")


def test_progress_is_reported(clock):
    made, _ = costing(clock, "a", lambda i: 1.0)
    told = []
    measure(
        [made],
        [5],
        schedule(clock, rounds=2),
        progress=told.append,
    )
    assert told == [
        "t, 5: a is judged",
        "t, 5: a, time",
        "t, 5: a, time",
        "t, 5: a, memory",
    ]


def test_short_runs_are_repeated_within_a_turn(clock):
    made, generated = costing(clock, "short", lambda i: 0.01)
    (row,) = measure([made], [4], schedule(clock, rounds=1, window=0.25))
    runs = [pair for pair in generated if pair == (4, 0, 4)]
    # The first warms up, seven are timed, the last token is for memory.
    assert len(runs) == 1 + 7
    assert row.seconds.median == pytest.approx(0.04)


def law_tasks_take_turns(interleaved):
    clock, order = Clock(), []
    tasks = {name: (lambda name=name: order.append(name)) for name in "abc"}
    interleaved(tasks, schedule(clock, rounds=3))
    assert order == list("abcabcabc")


def law_slow_tasks_get_fewer_rounds_but_one(interleaved):
    clock = Clock()

    def task(seconds):
        clock.now += seconds
        return clock.now

    tasks = {"fast": lambda: task(1.0), "slow": lambda: task(25.0)}
    samples = interleaved(tasks, schedule(clock, rounds=5, budget=20.0, pause=0.5))
    assert len(samples["fast"]) == 5
    assert len(samples["slow"]) == 1
    assert clock.slept == 0.5 * 6


def one_after_the_other(tasks, schedule, before=str):
    """All rounds of one, then all rounds of the next."""
    samples = {}
    for name, task in tasks.items():
        samples |= interleaved({name: task}, schedule, before)
    return samples


def without_a_budget(tasks, schedule, before=str):
    """Wait for slow tasks."""
    unlimited = Schedule(
        schedule.rounds, 1e9, schedule.pause, schedule.clock, schedule.sleep
    )
    return interleaved(tasks, unlimited, before)


def test_turns():
    law_tasks_take_turns(interleaved)
    law_slow_tasks_get_fewer_rounds_but_one(interleaved)


@pytest.mark.parametrize(
    ("law", "mutant"),
    [
        (law_tasks_take_turns, one_after_the_other),
        (law_slow_tasks_get_fewer_rounds_but_one, without_a_budget),
    ],
)
def test_wrong_turns_are_caught(law, mutant):
    with pytest.raises(AssertionError):
        law(mutant)


def law_the_range_of_a_ratio_holds_every_ratio(over):
    rng = np.random.default_rng(0)
    for _ in range(50):
        ours, theirs = rng.uniform(1, 2, 5), rng.uniform(3, 9, 4)
        ratio = over(Spread.of(list(theirs)), Spread.of(list(ours)))
        ratios = theirs[:, None] / ours
        assert ratio.low == ratios.min()
        assert ratio.high == ratios.max()
        assert ratio.low <= ratio.median <= ratio.high


def extreme_by_extreme(ours, other):
    """Fastest over fastest, slowest over slowest."""
    low, high = sorted((ours.low / other.low, ours.high / other.high))
    return Spread(ours.median / other.median, low, high, 1)


def test_ratios():
    law_the_range_of_a_ratio_holds_every_ratio(Spread.over)
    with pytest.raises(AssertionError):
        law_the_range_of_a_ratio_holds_every_ratio(extreme_by_extreme)


def test_the_peak_is_above_the_memory_left():
    kept = []

    def call():
        kept.append(np.ones(10**6, "uint8"))
        np.ones(3 * 10**6, "uint8")

    # The arrays, and some hundred bytes of Python around them.
    assert 4 * 10**6 <= memory.peak_by_tracing(call) <= 4 * 10**6 + 10**4


def test_growth_is_seen_by_the_system():
    grown = memory.peak_by_growth(lambda: np.ones(64 * 2**20, "uint8"))
    # The array itself; pages that others of this process free meanwhile count less.
    assert grown is None or grown >= 60 * 2**20


def test_growth_is_unknown_elsewhere(monkeypatch):
    monkeypatch.setattr("linkern.bench.memory.sys.platform", "darwin")
    assert memory.peak_by_growth(lambda: None) is None
