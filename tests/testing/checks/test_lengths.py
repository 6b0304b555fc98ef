"""Laws of long sequences: what they catch, what they leave, and when they stop."""

from types import SimpleNamespace

import numpy as np
import pytest

from linkern.testing import Plan, run
from linkern.testing.checks import lengths
from linkern.testing.kernels.assembly import Parts, recurrence, stateful
from linkern.testing.kernels.correct import CORRECT
from linkern.testing.kernels.mutants import MUTANTS
from linkern.testing.runner.loop import CheckFinished
from linkern.testing.spec.contract import Contract
from tests.marks import slow_unless

BOTH = ("very_long_sequences", "long_prefill")
FAST = stateful(Parts(chunk=128))


@pytest.fixture(autouse=True)
def no_clock(monkeypatch):
    """Judge up to 4,099 tokens however long that takes, and no more of slow kernels."""

    def predicted(seen, seconds, length):
        del seen, seconds
        return 0.0 if length < 5000 else np.inf

    monkeypatch.setattr(lengths, "predicted", predicted)


def verdicts(kernel, op, *checks, dtypes=("float32",), shrink=False, **declared):
    plan = Plan(
        "test",
        op=op,
        contract=Contract(**declared),
        dtypes=dtypes,
        profile="quick",
        function=kernel,
        diagnose=False,
        shrink=shrink,
        checks=checks,
    )
    results = (e.result for e in run(plan) if isinstance(e, CheckFinished))
    return {result.name: result for result in results}


def has_state(name):
    return "state" in str(getattr(CORRECT[name].kernel, "__signature__", ""))


def of_each_kind(name):
    return name in ("chunk_32_with_state", "kda by chunks", "abc by tokens")


# Those of linear attention meet every law in tests/testing/kernels.
@pytest.mark.parametrize(
    "name",
    slow_unless(
        of_each_kind,
        (
            name
            for name, kernel in CORRECT.items()
            if kernel.op != "linear_attention" or of_each_kind(name)
        ),
    ),
)
def test_correct_kernels_pass(name):
    kernel = CORRECT[name]
    found = verdicts(kernel.kernel, kernel.op, *BOTH, **kernel.contract)
    for result in found.values():
        assert result.verdict in ("passed", "skipped", "not_applicable"), result
        if result.verdict == "skipped":
            assert result.message.startswith(("judged up to 4099", "the target takes"))


def test_the_longest_is_judged_where_calls_are_fast(monkeypatch):
    monkeypatch.setattr(lengths, "predicted", lambda *_: 0.0)
    result = verdicts(FAST, "linear_attention", BOTH[0])[BOTH[0]]
    assert result.verdict == "passed"
    mutant = MUTANTS["indices_of_16_bits"]
    result = verdicts(mutant.kernel, mutant.op, BOTH[0])[BOTH[0]]
    assert result.verdict == "failed"
    assert "of 65541 tokens" in result.message
    assert result.counterexample.index[2] >= 2**16


@pytest.mark.parametrize(
    "name", ["history_of_4096", "decays_start_again_at_256", "prompt_without_tail"]
)
def test_mutants_fail(name):
    mutant = MUTANTS[name]
    result = verdicts(mutant.kernel, mutant.op, mutant.checks[0])[mutant.checks[0]]
    assert result.verdict == "failed"


def test_the_smallest_length_that_fails_is_shown():
    mutant = MUTANTS["decays_start_again_at_256"]
    result = verdicts(mutant.kernel, mutant.op, BOTH[0], shrink=True)[BOTH[0]]
    assert "of 1030 tokens" in result.message
    assert result.counterexample.index[2] >= 256


def leaks_at_4000(query, key, value, initial_state=None):
    """Let the last token move every output of a long sequence by a rounding."""
    output, state = FAST(query, key, value, initial_state)
    if output.shape[-2] > 4000:
        output = output + np.float32(2e-7) * value[..., -1:, :]
    return output, state


def test_a_future_that_leaks_into_long_sequences_is_seen():
    result = verdicts(leaks_at_4000, "linear_attention", BOTH[0])[BOTH[0]]
    assert result.verdict == "failed"


def out_of_memory(query, key, value):
    if query.shape[-2] > 2000:
        msg = "Unable to allocate 32. GiB"
        raise MemoryError(msg)
    return FAST(query, key, value)[0]


def test_a_kernel_without_the_memory_is_skipped_with_what_it_could():
    result = verdicts(out_of_memory, "linear_attention", BOTH[0])[BOTH[0]]
    assert result.verdict == "skipped"
    assert "judged up to 1030 tokens" in result.message
    assert "MemoryError" in result.message
    assert "max_length=1030" in result.remedies[0]


def crashes(query, key, value):
    if query.shape[-2] > 2000:
        msg = "index 2000 is out of bounds"
        raise IndexError(msg)
    return FAST(query, key, value)[0]


def test_any_other_exception_is_a_failure():
    result = verdicts(crashes, "linear_attention", BOTH[0])[BOTH[0]]
    assert result.verdict == "failed"
    assert "IndexError" in result.message


def test_slow_kernels_are_skipped_with_what_was_judged():
    kernel = recurrence("gla")
    result = verdicts(kernel, "gla", BOTH[0])[BOTH[0]]
    assert result.verdict == "skipped"
    assert "judged up to 4099 tokens" in result.message


def test_a_call_that_was_slow_once_stops_nothing(monkeypatch):
    monkeypatch.undo()
    # Each call is two looks at the clock: the second is slow, its repeat is not. The
    # first one is repeated before the third, and the second before the fourth.
    calls = (0.01, 9, 0.01, 0.04, 0.2, 0.04, 0.8)
    times = iter([look for n, x in enumerate(calls) for look in (10 * n, 10 * n + x)])
    clock = SimpleNamespace(perf_counter=lambda: next(times))
    monkeypatch.setattr(lengths, "time", clock)
    result = verdicts(FAST, "linear_attention", BOTH[0])[BOTH[0]]
    assert result.verdict == "passed"
    assert not list(times)


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"max_length": 512}, "max_length=512"),
        ({"max_length": 2048}, ""),
        ({"length_multiple_of": 64}, ""),
    ],
)
def test_declared_lengths_are_kept(declared, words):
    seen = []

    def kernel(query, key, value, initial_state=None):
        seen.append(query.shape[-2])
        return FAST(query, key, value, initial_state)

    result = verdicts(kernel, "linear_attention", BOTH[0], **declared)[BOTH[0]]
    assert words in result.message
    assert max(seen) <= declared.get("max_length", 4160)
    assert not any(n % declared.get("length_multiple_of", 1) for n in seen if n > 300)


def test_a_call_that_was_slow_by_chance_hides_no_growth(monkeypatch):
    """All pairs of 65,541 tokens are more than a machine holds."""
    monkeypatch.undo()
    usual, called = {1030: 0.002, 4099: 0.04, 16387: 0.6, 65541: 9.6}, []

    def timed(target, problem):
        called.append(problem.length)
        disturbed = called == [1030, 4099]
        output = np.broadcast_to(np.float32(0), (1, 1, problem.length, 1))
        return 0.15 if disturbed else usual[problem.length], output

    monkeypatch.setattr(lengths, "_timed", timed)
    monkeypatch.setattr(lengths, "_require_few", lambda *_: None)
    monkeypatch.setattr(lengths, "_require_past", lambda *_: None)
    result = verdicts(FAST, "linear_attention", BOTH[0])[BOTH[0]]
    assert result.verdict == "skipped"
    assert result.message.startswith("judged up to 16387 tokens: 65541 would take more")
    assert 65541 not in called


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [([0.1], 0.4), ([0.1, 0.4], 1.6), ([0.1, 9.9], 158.4), ([0.5, 0.1], 0.4)],
)
def test_the_next_call_is_predicted_from_the_last_two(seconds, expected, monkeypatch):
    monkeypatch.undo()
    seen = [1000, 4000][: len(seconds)]
    assert lengths.predicted(seen, seconds, 4 * seen[-1]) == pytest.approx(expected)
