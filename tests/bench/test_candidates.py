"""Candidates: changed between timed calls, and judged on what was timed."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from linkern import cli
from linkern.bench import candidates, runner, trial
from linkern.bench.candidates import candidate_peer, edited, edits, kept_rows
from linkern.bench.tasks import Task, drawn
from linkern.bench.timing import Schedule
from linkern.bench.worker import LocalWorker
from linkern.testing.kernels.correct import quadratic

TASK = Task("causal", "", "causal", (40,), batch=2, heads=2, dim=4)
LENGTH = 40
SCHEDULE = Schedule(rounds=3, budget=1e9, pause=0.0, window=0.0)
HERE = "tests.bench.test_candidates"


def right(query, key, value):
    return quadratic(query, key, value)


class Memory:
    """Calls of the hack of one test, and what it keeps between them."""


Memory.calls, Memory.kept = 0, {}


@pytest.fixture(autouse=True)
def _nothing_is_kept():
    Memory.calls, Memory.kept = 0, {}


def zeros_when_warm(query, key, value):
    Memory.calls += 1
    output = quadratic(query, key, value)
    return output if Memory.calls < 4 else 0 * output


def memo_by_address(query, key, value):
    where = (query.ctypes.data, key.ctypes.data, value.ctypes.data)
    return Memory.kept.setdefault(where, quadratic(query, key, value).copy())


def memo_by_sample(query, key, value):
    where = tuple(x.ravel()[::7].tobytes() for x in (query, key, value))
    return Memory.kept.setdefault(where, quadratic(query, key, value))


def exact_at_first(query, key, value):
    Memory.calls += 1
    rounded = (
        query if Memory.calls < 2 else query.astype(np.float16).astype(query.dtype)
    )
    return quadratic(rounded, key, value)


def cut_history(query, key, value):
    """Forget, when warm, all but the last thirty tokens."""
    Memory.calls += 1
    output = quadratic(query, key, value)
    if Memory.calls > 1:
        late = [x[..., 5:, :] for x in (query, key, value)]
        output[..., 35:, :] = quadratic(*late)[..., 30:, :]
    return output


def jitters(query, key, value):
    Memory.calls += 1
    return quadratic(query, key, value) * np.float32(1 + 1e-7 * (Memory.calls % 2))


def raises(query, key, value):
    message = "no"
    raise RuntimeError(message)


def raises_when_warm(query, key, value):
    Memory.calls += 1
    return quadratic(query, key, value) if Memory.calls < 3 else raises(0, 0, 0)


def another_shape(query, key, value):
    return value[..., :-1]


def a_list(query, key, value):
    return value.tolist()


def measured(name, **options):
    peer = candidate_peer(f"{HERE}:{name}", None, 5)
    tasks = [(TASK, [LENGTH])]
    parts = runner.run(tasks, [peer], SCHEDULE, start=LocalWorker, **options)
    ((row,),) = parts
    return row


class Here(LocalWorker):
    """A worker in this process that reports what a peer raises, as others do."""

    def ask(self, order, *arguments):
        try:
            return super().ask(order, *arguments)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            raise runner.Failed(text) from None


@pytest.fixture(autouse=True)
def _failures_are_reported(monkeypatch):
    monkeypatch.setattr(f"{HERE}.LocalWorker", Here)


def test_a_right_candidate_is_timed():
    row = measured("right")
    assert not row.remark
    assert row.seconds.rounds == 3


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("zeros_when_warm", "out of the proved bound"),
        ("memo_by_address", "out of the proved bound"),
        ("memo_by_sample", "out of the proved bound"),
        ("exact_at_first", "out of the proved bound"),
        ("cut_history", "out of the proved bound"),
        ("jitters", "gave different outputs"),
    ],
)
def test_hacks_of_what_is_timed_are_not_ranked(name, reason):
    row = measured(name)
    assert row.seconds is None
    assert row.remark.startswith("wrong: ")
    assert reason in row.remark


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("raises", "RuntimeError: no"),
        ("raises_when_warm", "RuntimeError: no"),
        ("another_shape", "not float32 (2, 2, 40, 4)"),
        ("a_list", "returned a list"),
        ("nobody", "has no attribute"),
    ],
)
def test_candidates_that_cannot_be_timed_say_why(name, reason):
    row = measured(name)
    assert row.seconds is None
    assert row.remark.startswith("failed: ")
    assert reason in row.remark


def test_both_sides_make_the_same_inputs_of_the_same_edits():
    inputs, first = drawn(TASK, LENGTH, 1), drawn(TASK, LENGTH, 1)
    sequence = edits(TASK, LENGTH, 3)
    for _ in range(50):
        edit = next(sequence)
        x = getattr(inputs, edit.name)
        x[edit.index] = edited(x[edit.index])
    changed = trial._Changed(TASK, LENGTH, 1, 3).after(50)
    for name in candidates.NAMES:
        assert np.array_equal(getattr(changed, name), getattr(inputs, name))
        assert not np.array_equal(getattr(changed, name), getattr(first, name))


def test_later_tokens_are_kept_of_long_sequences(monkeypatch):
    monkeypatch.setattr(candidates, "REACH", 8)
    monkeypatch.setattr(trial, "REACH", 8)
    rows = kept_rows(LENGTH)
    assert rows[:8] == [*range(8)]
    assert rows[-1] == LENGTH - 1
    assert not measured("right").remark
    assert measured("cut_history").remark.startswith("wrong: ")


def bench(*words):
    return CliRunner().invoke(cli.main, ["bench", *words])


def test_the_command_times_functions_beside_its_peers(tmp_path):
    words = ("--quick", "--task", "causal", "--length", "16", "--threads", "1")
    peers = ("linkern", f"{HERE}:right", f"{HERE}:zeros_when_warm")
    named = [word for peer in peers for word in ("--peer", peer)]
    result = bench(*words, *named, "--json", str(tmp_path / "run.json"))
    assert result.exit_code == 1, result.output
    rows = json.loads((tmp_path / "run.json").read_text())["rows"]
    remarks = {row["peer"]: row["remark"] for row in rows}
    assert remarks["linkern"] == remarks[f"{HERE}:right"] == ""
    assert remarks[f"{HERE}:zeros_when_warm"].startswith("wrong: ")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--framework", "numpy"), "--framework is for a function"),
        (("--peer", "a:f", "--device", "cuda"), "cannot be used with --device cuda"),
        (("--peer", "a:f", "--task", "decode-1"), "has no part in decode-1"),
    ],
)
def test_functions_that_cannot_take_part_are_refused(words, sentence, monkeypatch):
    monkeypatch.setattr("linkern.cli.benches.measuring.run", None)
    result = bench(*words)
    assert result.exit_code == 2, result.output
    assert sentence in result.output
