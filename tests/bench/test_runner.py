"""The runner: judging, turns, memory, and peers that fail."""

from dataclasses import replace

import numpy as np
import pytest

from linkern.bench import records, reference, runner
from linkern.bench.clocks import Peak, Turn, timed
from linkern.bench.cpu import CPU
from linkern.bench.peers import COPY, GEMM
from linkern.bench.tasks import OURS, Task, drawn
from linkern.bench.timing import Schedule
from linkern.bench.workers import Failed, Process, environment

TASK = Task("t", "", "causal", (8,), batch=1, heads=1, dim=4)
NO, DEAD = "ValueError: no", "its process ended with -9"
SCHEDULE = Schedule(rounds=3, budget=1e9, pause=0.0, window=0.0)


def peer(name, **changes):
    return replace(CPU.peer(OURS), name=name, traced=False, **changes)


class Fakes:
    """Fake workers with scripted replies, and a log of all orders."""

    def __init__(self, seconds=1.0, foreign=0.0, *, off=(), dies=(), raises=()):
        self.seconds, self.foreign = seconds, foreign
        self.off, self.dies, self.raises = off, dies, raises
        self.log, self.started, self.closed = [], [], []

    def start(self, threads):
        self.started.append(threads)
        return Fake(self)

    def turns(self):
        return [name for name, order in self.log if order == "turn"]


class Fake:
    def __init__(self, fakes):
        self.fakes, self.name = fakes, None

    def ask(self, order, *arguments):
        fakes = self.fakes
        if order == "prepare":
            who, task, length, seed, rows, *_ = arguments
            self.name = who.name
            fakes.log.append((self.name, order))
            if self.name in fakes.raises:
                raise Failed(NO)
            inputs = drawn(task, length, seed)
            answers = reference.answers(inputs, task.kind, "attention", rows)
            wrong = 1.01 if self.name in fakes.off else 1.0
            return [wrong * x for x in answers]
        fakes.log.append((self.name, order))
        if order == "turn":
            if self.name in fakes.dies:
                raise Failed(DEAD)
            share = fakes.foreign
            return Turn(fakes.seconds, 1, share() if callable(share) else share)
        return Peak(4000) if order == "peak" else None

    def close(self):
        self.fakes.closed.append(self.name)


def run_of(tasks, peers, schedule, **options):
    return runner.run(tasks, peers, schedule, limits=CPU.limits, **options)


def run(fakes, *peers, task=TASK, lengths=(8,), running=run_of, **options):
    options = {"threads": 2, **options}
    parts = running([(task, lengths)], peers, SCHEDULE, start=fakes.start, **options)
    return {(row.length, row.peer): row for part in parts for row in part}


def law_peers_take_turns(running):
    fakes = Fakes()
    run(fakes, peer("a"), peer("b"), running=running)
    assert fakes.turns() == ["a", "b", GEMM, COPY] * 3


def law_wrong_peers_are_not_timed(running):
    fakes = Fakes(off={"b"})
    rows = run(fakes, peer("a"), peer("b"), running=running)
    assert "b" not in fakes.turns()
    assert rows[8, "b"].remark.startswith("wrong: off by 0.0")
    assert rows[8, "b"].seconds is None
    assert rows[8, "b"].error == pytest.approx(0.01, rel=1e-3)
    assert rows[8, "a"].seconds.median == 1.0


def law_a_death_ends_no_other_peer(running):
    fakes = Fakes(dies={"a"}, raises={"b"})
    rows = run(fakes, peer("a"), peer("b"), peer("c"), running=running)
    assert "ended with -9" in rows[8, "a"].remark
    assert "ValueError: no" in rows[8, "b"].remark
    assert rows[8, "c"].seconds.rounds == 3
    assert fakes.turns().count("a") == 1


def one_after_the_other(tasks, peers, schedule, **options):
    """Run each peer alone, and then the next."""
    for one in peers:
        yield from run_of(tasks, [one], schedule, **options)


def accepts_every_answer(tasks, peers, schedule, **options):
    """Accept every answer."""
    allowed = reference.ALLOWED
    reference.ALLOWED = dict.fromkeys(allowed, np.inf)
    try:
        yield from run_of(tasks, peers, schedule, **options)
    finally:
        reference.ALLOWED = allowed


def asks_the_dead(tasks, peers, schedule, **options):
    """Hide that a process has died."""
    start = options.pop("start")

    class Stubborn:
        def __init__(self, worker):
            self.worker = worker

        def ask(self, *order):
            try:
                return self.worker.ask(*order)
            except Failed:
                return Turn(0.0, 1, 0.0) if order[0] == "turn" else []

        def close(self):
            self.worker.close()

    def hidden(threads):
        return Stubborn(start(threads))

    yield from run_of(tasks, peers, schedule, start=hidden, **options)


def test_a_run():
    law_peers_take_turns(run_of)
    law_wrong_peers_are_not_timed(run_of)
    law_a_death_ends_no_other_peer(run_of)


@pytest.mark.parametrize(
    ("law", "mutant"),
    [
        (law_peers_take_turns, one_after_the_other),
        (law_wrong_peers_are_not_timed, accepts_every_answer),
    ],
)
def test_wrong_runners_are_caught(law, mutant):
    with pytest.raises(AssertionError):
        law(mutant)


def test_a_runner_that_hides_deaths_is_caught():
    with pytest.raises(AssertionError):
        law_a_death_ends_no_other_peer(asks_the_dead)


def test_processes_are_kept_between_lengths_and_tasks_and_ended():
    fakes = Fakes()
    tasks = [(TASK, (8, 9)), (replace(TASK, name="u"), (8,))]
    parts = list(run_of(tasks, [peer("a")], SCHEDULE, threads=2, start=fakes.start))
    assert [len(rows) for rows in parts] == [3, 3, 3]
    assert fakes.started == [2, 2, 2]  # a and the two limits
    assert sorted(fakes.closed) == ["a", COPY, GEMM]
    assert fakes.log.count(("a", "release")) == 3


def test_processes_end_when_the_run_is_cut_short():
    fakes = Fakes()
    parts = run_of([(TASK, (8,))] * 2, [peer("a")], SCHEDULE, start=fakes.start)
    next(parts)
    parts.close()
    assert len(fakes.closed) == len(fakes.started) == 3


def test_threads_are_those_of_the_run_of_the_task_or_of_the_peer():
    fakes = Fakes()
    run(fakes, peer("a"), peer("b", threads=1))
    assert fakes.started == [2, 1, 2, 2]
    fakes = Fakes()
    rows = run(fakes, peer("a"), task=replace(TASK, threads=1))
    assert fakes.started == [1, 1, 1]
    assert rows[8, "a"].threads == 1


def test_tokens_share_the_time_of_a_call_but_limits_do_not():
    rows = run(Fakes(), peer("a"), task=replace(TASK, kind="decode"))
    assert rows[8, "a"].seconds.median == 1 / 8
    assert rows[8, GEMM].seconds.median == 1


def test_memory_is_that_of_one_more_call():
    rows = run(Fakes(), peer("a"))
    assert rows[8, "a"].extra_bytes == 4000
    assert rows[8, "a"].extra_by == "resident memory"
    assert rows[8, GEMM].extra_bytes is None


def test_traced_memory_is_measured_in_a_process_of_its_own():
    fakes = Fakes()
    run(fakes, replace(peer("a"), traced=True))
    assert len(fakes.started) == 4
    orders = [order for name, order in fakes.log if name == "a"]
    turns = ["turn"] * 3
    assert orders == ["prepare", *turns, "release", "prepare", "peak", "release"]


def test_noisy_turns_are_repeated_and_the_quietest_counts():
    shares = iter([0.5, 0.3, 0.4, 0.05] + [0.0] * 99)
    fakes = Fakes(foreign=lambda: next(shares))
    rows = run(fakes, peer("a"), attempts=3)
    # Three attempts in the first round, then 0.05 of the first limit is quiet enough.
    assert fakes.turns()[:4] == ["a", "a", "a", GEMM]
    assert rows[8, "a"].foreign == 0.0
    fakes = Fakes(foreign=0.5)
    rows = run(fakes, peer("a"), attempts=1)
    assert fakes.turns().count("a") == 3
    assert rows[8, "a"].foreign == 0.5 > records.FOREIGN
    fakes = Fakes(seconds=30.0, foreign=0.5)  # a call that is too long to repeat
    run(fakes, peer("a"), attempts=3)
    assert fakes.turns()[:2] == ["a", GEMM]


def test_a_length_that_is_too_long_has_a_remark():
    fakes = Fakes()
    rows = run(fakes, peer("a", longest=8), lengths=(8, 9))
    assert rows[9, "a"].remark == "left out above 8 tokens"
    assert rows[8, "a"].remark == ""
    assert len(fakes.turns()) == 3 * 3 + 3 * 2


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def law_the_first_of_several_calls_wakes_up(timing):
    clock = Clock()
    lasting = iter([9.0, 1.0, 2.0, 3.0, 99.0])

    def call():
        clock.now += next(lasting)

    turn = timing(call, 15.0, clock)
    assert (turn.seconds, turn.calls) == (2.0, 3)


def counts_the_first(call, window, clock):
    first = clock()
    call()
    first = clock() - first
    turn = timed(call, window - first, clock)
    return Turn((first + turn.seconds) / 2, turn.calls + 1, 0.0)


def test_the_first_of_several_calls_wakes_up():
    law_the_first_of_several_calls_wakes_up(timed)
    with pytest.raises(AssertionError):
        law_the_first_of_several_calls_wakes_up(counts_the_first)


def test_a_long_call_is_made_once():
    clock = Clock()

    def call():
        clock.now += 10.0

    assert timed(call, 1.0, clock).calls == 1
    assert timed(call, 0.0, clock).seconds == 10.0
    assert timed(lambda: None, 1.0, Clock()).calls == 1999  # a clock that stands still


def test_a_process_prepares_times_and_reports_exceptions():
    worker = Process(1)
    try:
        first = worker.ask("prepare", CPU.peer(OURS), TASK, 8, 0, [7])
        expected = reference.answers(drawn(TASK, 8, 0), "causal", "attention", [7])
        assert reference.largest_error(first, expected) <= 1e-6
        assert worker.ask("turn", 0.0).seconds > 0
        assert worker.ask("peak").extra > 0
        broken = peer("a", prepare="cpu.numpy_peers:nothing")
        with pytest.raises(Failed, match="has no attribute"):
            worker.ask("prepare", broken, TASK, 8, 0, [7])
        worker._child._process.kill()
        with pytest.raises(Failed, match="its process crashed with SIGKILL"):
            worker.ask("turn", 0.0)
    finally:
        worker.close()


def test_every_library_gets_the_number_of_threads():
    told = environment(3)
    assert {told[f"{x}_NUM_THREADS"] for x in ("OMP", "OPENBLAS", "LINKERN")} == {"3"}
