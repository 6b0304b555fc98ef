"""A run on a GPU: order of peers, shares of copying, goals, files, and no GPU."""

import json
import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from io import StringIO
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from rich.console import Console

from linkern import cli
from linkern.bench import files, reference, runner, tables
from linkern.bench.clocks import Turn
from linkern.bench.cuda import CUDA, machine
from linkern.bench.cuda.machine import Accelerator
from linkern.bench.goals import outcomes
from linkern.bench.patience import Patience
from linkern.bench.peers import COPY
from linkern.bench.records import Row, Run, latest
from linkern.bench.tasks import OURS, Task, drawn
from linkern.bench.timing import Schedule, Spread
from linkern.bench.workers import Failed, Process, TooSlow

SHAPE = {"batch": 2, "heads": 3, "dim": 4, "dtype": "float32"}
TASK = Task("t", "", "causal", (8,), **SHAPE, device="cuda")
RATE = 1e12  # bytes per second of copying, made up
HERE = Accelerator("none", "1", 2, 3, 4, 5, "here", "3", "0", {"numpy": "2"})


def spread(seconds):
    return Spread(seconds, 0.9 * seconds, 1.1 * seconds, 7)


def row(task, length, name, seconds, **more):
    taken = None if seconds is None else spread(seconds)
    more = {"timed_by": "graph", "error": 1e-3, **more}
    return Row(task, length, name, f"summary of {name}", 1, taken, **more)


def copying(task, length, rate=RATE):
    return row(task, length, COPY, 2 * CUDA.copied / rate, error=None)


def at_share(task, length, share):
    """Return the seconds that are a share of copying."""
    return CUDA.task(task).compulsory_bytes(length) / RATE / share


def run_of(*rows):
    return Run(CUDA, HERE, "abc", 0, tuple(rows))


@pytest.fixture
def run():
    fast, slow = at_share("causal", 4096, 0.75), at_share("causal", 16384, 0.6)
    return run_of(
        row("causal", 4096, OURS, fast),
        row("causal", 4096, "fla-chunk", 4 * fast),
        row("causal", 4096, "torch-loop", 20 * fast),
        row("causal", 4096, "fla-kernel", 0.1 * fast),  # computes less
        row("causal", 4096, "torch-sdpa", None, remark="wrong: off by 3", error=3.0),
        copying("causal", 4096),
        row("causal", 16384, OURS, slow, timed_by="events: no graph, RuntimeError"),
        copying("causal", 16384),
    )


def test_shares_of_copying_and_the_fastest_peer(run):
    ours = run.row("causal", 4096, OURS)
    assert run.bandwidth("causal", 4096).median == pytest.approx(RATE)
    assert run.floor(ours) == pytest.approx(0.75)
    assert run.floor(run.row("causal", 4096, "torch-sdpa")) is None
    assert run.floor(run.row("causal", 4096, COPY)) is None
    assert run.fastest("causal", 4096).peer == "fla-chunk"
    assert run.fastest("causal", 16384) is None
    ratio = run.ratio(run.row("causal", 4096, "fla-chunk"))
    assert ratio.median == pytest.approx(4)
    assert run.floor(row("causal", 512, OURS, 1.0)) is None  # no copying there


SHARES = [goal for goal in CUDA.goals if goal.quantity == "copying"]


def law_goals_are_met_from_the_share_on(judged):
    for goal in SHARES:
        task, length = goal.task, CUDA.task(goal.task).lengths[-1]
        for factor, verdict in ((1.001, "met"), (0.999, "missed"), (None, "not")):
            share = None if factor is None else factor * goal.least
            seconds = None if share is None else at_share(task, length, share)
            rows = (row(task, length, OURS, seconds), copying(task, length))
            (outcome,) = (x for x in judged(run_of(*rows)) if x.goal in SHARES)
            assert outcome.verdict.startswith(verdict)
            assert (outcome.goal.task, outcome.length) == (task, length)


def of_the_wrong_dtype(run):
    """Count bytes of float32 everywhere."""
    results = outcomes(run)
    wide = [x for x in results if CUDA.task(x.goal.task).dtype != "float32"]
    return [replace(x, value=x.value and 2 * x.value) for x in wide] or results


def test_goals_are_met_from_the_share_on():
    law_goals_are_met_from_the_share_on(outcomes)
    with pytest.raises(AssertionError):
        law_goals_are_met_from_the_share_on(of_the_wrong_dtype)


def test_goals_are_of_tasks_and_shares():
    tasks = {task.name for task in CUDA.tasks}
    assert {goal.task for goal in CUDA.goals} <= tasks
    assert all(0 < goal.least < 1 and goal.most is None for goal in SHARES)
    assert len({goal.task for goal in SHARES}) == len(SHARES) == 8
    (speed,) = (goal for goal in CUDA.goals if goal not in SHARES)
    assert (speed.task, speed.against) == ("delta-wide", ("fla-delta",))
    assert len(tasks) == len(CUDA.tasks)


def test_a_run_is_the_same_after_reading_it_back(run, tmp_path):
    path = tmp_path / "run.json"
    files.write_run(run, path)
    assert files.read_run(path, CUDA) == run
    written = json.loads(path.read_text())
    assert written["rows"][0]["share_of_copying"] == pytest.approx(0.75)
    assert written["bytes_per_second"]["causal"]["4096"] == pytest.approx(RATE)
    goals = [
        {"task": "causal", "length": length, "goal": 0.7, "reached": share}
        for length, share in ((4096, 0.75), (16384, 0.6))
    ]
    for goal, verdict in zip(goals, ("met", "missed"), strict=True):
        goal |= {"reached": pytest.approx(goal["reached"]), "verdict": verdict}
    assert written["goals"] == goals
    assert set(written["rows"][0]) == {
        *("task", "length", "peer", "summary", "seconds", "error", "remark"),
        *("timed_by", "share_of_copying", "ratio_to_linkern"),
    }


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema": "linkern-bench-1"}'])
def test_foreign_files_are_refused(tmp_path, text):
    path = tmp_path / "foreign.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"foreign\.json"):
        files.read_run(path, CUDA)


def shown(*what):
    console = Console(width=160, record=True, file=StringIO())
    for x in what:
        console.print(x)
    return console.export_text()


def test_tables(run):
    text = shown(tables.task_table(run, run.tasks()[0]), tables.goals_table(run))
    for word in ("75 %", "60 %", "1000 GB/s", "graph", "events", "wrong", "missed"):
        assert word in text
    assert "4 times as long (fla-chunk)" in text
    remarks = tables.remarks(run)
    assert "causal, 4096: torch-sdpa wrong: off by 3" in remarks
    assert "causal, 16384: linkern no graph, RuntimeError" in remarks
    assert len(remarks) == 2


class Fakes:
    """Fake workers with scripted replies, and a log of all orders."""

    def __init__(self, *, off=(), raises=(), dies=()):
        self.off, self.raises, self.dies = off, raises, dies
        self.log, self.running = [], 0

    def start(self, threads):
        assert threads == 1
        self.running += 1
        return Fake(self)


class Fake:
    def __init__(self, fakes):
        self.fakes, self.name = fakes, None

    def ask(self, order, *arguments):
        fakes = self.fakes
        if order == "prepare":
            peer, task, length, seed, rows = arguments
            self.name = peer.name
        fakes.log.append((self.name, order))
        if order == "prepare":
            if self.name in fakes.raises:
                msg = "ValueError: no"
                raise Failed(msg)
            if peer.meaning == "limit":
                return []
            inputs = drawn(task, length, seed)
            answers = reference.expected(task, inputs, "attention", rows)
            return [x * (1.01 if self.name in fakes.off else 1) for x in answers]
        if order == "turn":
            if self.name in fakes.dies:
                msg = "its process ended with -9"
                raise Failed(msg)
            times = len([x for x in fakes.log if x == (COPY, "prepare")])
            return Turn(1.0 * times, 1, by="graph")
        return None

    def close(self):
        self.fakes.running -= 1


def ran(fakes, *names, lengths=(8,), **more):
    peers = [replace(CUDA.peer(OURS), name=name, needs=()) for name in names]
    limits = [replace(limit, needs=()) for limit in CUDA.limits]
    schedule = Schedule(rounds=3, pause=0.0)
    parts = [(TASK, lengths)], peers, schedule
    options = {"limits": limits, "start": fakes.start, **more}
    rows = latest([row for part in runner.run(*parts, **options) for row in part])
    return [[row for row in rows if row.length == length] for length in lengths]


def orders(fakes, order):
    return [name for name, what in fakes.log if what == order]


def law_wrong_and_dead_peers_are_not_timed(running):
    fakes = Fakes(off={"b"}, raises={"c"}, dies={"d"})
    (results,) = running(fakes, "a", "b", "c", "d", "e")
    rows = {row.peer: row for row in results}
    assert rows["b"].remark.startswith("wrong: off by 0.0")
    assert rows["b"].seconds is None
    assert rows["c"].remark == "failed: ValueError: no"
    assert rows["d"].remark == "failed: its process ended with -9"
    assert rows["e"].seconds == Spread(1.0, 1.0, 1.0, 3)
    turns = [*[COPY] * 3, *["a"] * 3, "d", *["e"] * 3, *[COPY] * 3]
    assert orders(fakes, "turn") == turns
    assert fakes.running == 0


@pytest.mark.slow
def test_wrong_and_dead_peers_are_not_timed(monkeypatch):
    law_wrong_and_dead_peers_are_not_timed(ran)
    monkeypatch.setitem(reference.ALLOWED, "float32", 1.0)
    with pytest.raises(AssertionError):
        law_wrong_and_dead_peers_are_not_timed(ran)


def test_copying_is_timed_before_and_after():
    fakes = Fakes()
    ((ours, limit),) = ran(fakes, "a")
    assert ours.seconds.median == 1.0
    assert limit.seconds == Spread(1.5, 1.0, 2.0, 6)


class Slow(Fakes):
    """Workers whose every order takes some seconds of a clock."""

    def __init__(self, seconds, patience):
        super().__init__()
        self.now, self.seconds, self.patience = 0.0, seconds, patience
        patience.clock = lambda: self.now

    def start(self, threads):
        fake, ask = super().start(threads), Fake.ask

        def slowly(order, *arguments):
            if order == "prepare":
                fake.name = arguments[0].name
            needed = self.seconds.get(fake.name, 1.0) if order == "prepare" else 0.1
            if needed > self.patience.seconds():
                self.now += self.patience.seconds()
                msg = "not done in its time"
                raise TooSlow(msg)
            self.now += needed
            return ask(fake, order, *arguments)

        fake.ask = slowly
        return fake


def test_a_compiler_is_not_waited_for():
    patience = Patience(contestant=60.0)
    fakes = Slow({"b": 391.0}, patience)
    (rows,) = ran(fakes, "a", "b", "c", patience=patience)
    remarks = {row.peer: row.remark for row in rows}
    assert remarks == {
        "a": "",
        "b": "left out: not done in its time",
        "c": "",
        COPY: "",
    }
    assert fakes.now < 70
    assert "left out: not done in its time" in " ".join(tables.remarks(run_of(*rows)))


def test_a_task_has_its_time():
    patience = Patience(contestant=60.0, task=100.0)
    fakes = Slow(dict.fromkeys("abcd", 55.0), patience)
    first, second = ran(fakes, *"abcd", lengths=(8, 16), patience=patience)
    for rows in (first, second):
        remarks = {row.peer: row.remark for row in rows}
        assert not remarks["a"] + remarks["b"] + remarks[COPY]
        assert remarks["c"] == "left out: the 100 s of this task were over"
    # Ours, the first one, is measured whatever the limits took.
    fakes = Slow({COPY: 59.0, "a": 50.0}, Patience(contestant=60.0, task=1.0))
    ((ours, other, _),) = ran(fakes, *"ab", patience=fakes.patience)
    assert (ours.remark, other.remark[:8]) == ("", "left out")


def test_ours_and_copying_have_more_time():
    patience = Patience(contestant=5.0)
    fakes = Slow({COPY: 59.0, "a": 59.0, "b": 59.0}, patience)
    (rows,) = ran(fakes, *"ab", patience=patience)
    assert [row.peer for row in rows if row.remark] == ["b"]


def test_seconds_are_shared_by_tasks(monkeypatch, run):
    seen = []

    def told(tasks, peers, schedule, **options):
        patience = options["patience"]
        seen.append((patience.contestant, patience.task))
        yield run.rows

    monkeypatch.setitem(sys.modules, "cupy", fake_cupy())
    monkeypatch.setattr(machine, "find_spec", lambda name: name)
    monkeypatch.setattr("linkern.cli.benches.measuring.run", told)
    words = ("--task", "causal", "--task", "wide", "--length", "4096")
    shared = invoke(*words, "--seconds", "60")
    assert shared.exit_code == 0, shared.output
    assert "a contestant is left out after 15 s at a length" in shared.output
    assert invoke(*words).exit_code == 0
    assert seen == [(15.0, 30.0), (60.0, 150.0)]
    refused = CliRunner().invoke(cli.main, ["bench", "--seconds", "5"])
    assert refused.exit_code == 2
    assert "--seconds needs --device cuda" in refused.output


def test_rows_come_one_by_one():
    fakes = Fakes()
    peers = [replace(CUDA.peer(OURS), name=name, needs=()) for name in "ab"]
    limits = [replace(limit, needs=()) for limit in CUDA.limits]
    schedule = Schedule(rounds=3, pause=0.0)
    parts = runner.run(
        [(TASK, (8,))], peers, schedule, limits=limits, start=fakes.start
    )
    assert [next(parts)[0].peer for _ in range(2)] == [COPY, "a"]
    assert "b" not in {name for name, _ in fakes.log}


def test_a_process_is_ended_when_its_time_is_over():
    patience = Patience(contestant=0.0)
    patience.begin_contestant()
    worker = Process(1, patience=patience)
    try:
        with pytest.raises(TooSlow, match="not done in the 0 s of a contestant"):
            worker.ask("prepare", CUDA.peer(OURS), TASK, 8, 0, [7])
    finally:
        worker.close()


def test_memory_is_released_before_the_next_peer():
    fakes = Fakes(off={"b"})
    ran(fakes, "a", "b")
    assert [x for x in fakes.log if x[0] == "b"] == [("b", "prepare"), ("b", "release")]
    assert orders(fakes, "release") == [COPY, "a", "b", COPY]


def test_a_process_reports_its_exception():
    worker = Process(1)
    broken = replace(CUDA.peer(OURS), prepare="cuda.cupy_peers:nothing")
    try:
        with pytest.raises(Failed, match="has no attribute 'nothing'"):
            worker.ask("prepare", broken, TASK, 8, 0, [7])
    finally:
        worker.close()


def invoke(*words):
    return CliRunner().invoke(cli.main, ["bench", "--device", "cuda", *words])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--task", "noncausal"), "--task must be one of causal, wide, float32"),
        (("--peer", "flash"), "--peer must be one of linkern, fla-chunk"),
        (("--threads", "2"), "--threads cannot be used with --device cuda"),
        (("--plot", "a.png"), "--plot cannot be used with --device cuda"),
        (("--compare", "a.json"), "--compare cannot be used with --device cuda"),
    ],
)
def test_bad_options_exit_with_2(words, sentence):
    result = invoke(*words)
    assert result.exit_code == 2, result.output
    assert sentence in result.output


def test_without_a_gpu_it_exits_with_2(monkeypatch):
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    result = invoke()
    assert result.exit_code == 2
    assert "pip install 'linkern[cuda13]'" in result.output
    blind = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "cupy", blind)
    monkeypatch.setattr(machine, "find_spec", lambda name: name)
    result = invoke()
    assert result.exit_code == 2
    assert "needs a GPU of NVIDIA, and CuPy finds none" in result.output


def fake_cupy():
    properties = {
        "name": b"a made-up GPU",
        "multiProcessorCount": 7,
        "totalGlobalMem": 3 << 30,
        "l2CacheSize": 5 << 20,
    }
    runtime = SimpleNamespace(
        getDeviceProperties=lambda number: properties, runtimeGetVersion=lambda: 13000
    )
    device = lambda: SimpleNamespace(id=0)  # noqa: E731
    cuda = SimpleNamespace(is_available=lambda: True, runtime=runtime, Device=device)
    return SimpleNamespace(cuda=cuda, __spec__=ModuleSpec("cupy", None))


def test_the_command_shows_and_writes(monkeypatch, tmp_path, run):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy())
    monkeypatch.setattr(machine, "find_spec", lambda name: name)
    seen = []

    def told(given, peers, schedule, **options):
        names = [(task.name, tuple(lengths)) for task, lengths in given]
        seen.append((names, len(peers), schedule.rounds))
        yield run.rows

    monkeypatch.setattr("linkern.cli.benches.measuring.run", told)
    path = tmp_path / "run.json"
    result = invoke("--json", str(path))
    assert result.exit_code == 0, result.output
    for word in ("a made-up GPU, 7 multiprocessors, 3 GiB, cache 5 MiB", "75 %", "met"):
        assert word in result.output
    assert files.read_run(path, CUDA).rows == run.rows
    assert invoke("--quick", "--length", "99", "--peer", "torch-loop").exit_code == 0
    every, quick = seen
    assert [name for name, _ in every[0]] == [task.name for task in CUDA.tasks]
    assert every[1:] == (len(CUDA.peers), 7)
    assert quick == ([("causal", (99,)), ("decode-1024", (16,))], 2, 3)
