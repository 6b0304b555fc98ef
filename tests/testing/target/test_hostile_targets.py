"""A wild target costs the checks that it breaks, never the run, and it is named.

Every target here runs in a child process and does something to it that kernels have
done. Whatever that is, every check that was asked for has a verdict at the end.
"""

import os
import platform
import random
import signal
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from linkern.testing import UsageError, run, verify
from linkern.testing.api import plan_of
from linkern.testing.errors import TargetDied, TargetRaised
from linkern.testing.runner.loop import CheckFinished
from linkern.testing.target.process import ChildProcess, InProcess
from linkern.testing.target.protocol import Call, TargetConfig
from tests.waiting import LONG, eventually

KERNELS = Path(__file__).parents[1] / "targets.py"
TRACES = "leaves_no_trace"
PLAIN = "shape_and_dtype"
AROUND = "nothing_leaks_from_padding"

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="processes are limited as on Linux"
)


def judge(name, *checks, timeout=LONG, **options):
    """Return verdict and message of each check, of a target in a child process."""
    plan = plan_of(
        f"{KERNELS}:{name}",
        op="linear_attention",
        checks=checks,
        profile="quick",
        dtypes=("float32",),
        timeout=timeout,
        shrink=False,
        diagnose=False,
        **options,
    )
    results = [e.result for e in run(plan) if isinstance(e, CheckFinished)]
    assert len(results) == len(checks)
    return {result.name: (result.verdict, result.message) for result in results}


@pytest.mark.parametrize(
    ("name", "check", "words"),
    [
        # what it leaves behind
        ("seeds_python", TRACES, "the call changed the random state of Python"),
        ("seeds_numpy", TRACES, "the call changed the random state of NumPy"),
        ("changes_error_handling", TRACES, "changed the error handling of NumPy"),
        ("changes_directory", TRACES, "the call changed the working directory"),
        ("patches_numpy", TRACES, "the call changed the functions of NumPy"),
        ("forks_twice", TRACES, "the call changed a copy of its process"),
        # what it returns
        ("returns_a_subclass", PLAIN, "targets.Subclass, not an array of its library"),
        ("returns_a_masked_array", PLAIN, "MaskedArray, not an array of its library"),
        ("returns_a_matrix", PLAIN, "matrix, not an array of its library"),
        ("returns_something_lazy", PLAIN, "targets.Lazy, not an array of its library"),
        ("returns_a_generator", PLAIN, "returned generator, not an array"),
        ("returns_objects", PLAIN, "has dtype object, it must have the dtype"),
        # how it ends
        ("exits", PLAIN, "the target ended its process with exit code 3"),
        ("exits_hard", PLAIN, "the target ended its process with exit code 7"),
        ("interrupts", PLAIN, "the target crashed with SIGINT"),
        ("leaves_a_generator", PLAIN, "ended its process with exit code 1"),
        ("closes_all_files", PLAIN, "the target ended its process with exit code"),
        ("leaves_a_fork_and_dies", PLAIN, "ended its process with exit code 9"),
    ],
)
def test_a_wild_target_costs_a_check_and_is_named(name, check, words):
    found = (
        judge(name, PLAIN, TRACES) if check in (PLAIN, TRACES) else judge(name, check)
    )
    verdict, message = found[check]
    assert verdict == "failed"
    assert words in message


def test_a_target_that_raises_on_its_first_call_is_refused():
    with pytest.raises(UsageError, match='recurses" raised RecursionError'):
        judge("recurses", PLAIN)


@pytest.mark.parametrize(
    "name",
    [
        "leaves_a_fork",
        "leaves_a_thread",
        "prints_without_end",
        "replaces_stdout",
        "empties_its_environment",
    ],
)
def test_a_harmless_one_costs_nothing(name):
    found = judge(name, PLAIN, "value_on_reals")
    assert [verdict for verdict, _ in found.values()] == ["passed", "passed"]


def test_what_is_changed_in_every_call_is_seen_after_many():
    """The first call is not the one that is looked at, so each must show it again."""
    for name in ("changes_error_handling", "seeds_numpy", "changes_directory"):
        found = judge(name, PLAIN, "determinism", TRACES)
        assert {n for n, (verdict, _) in found.items() if verdict == "failed"} == {
            TRACES
        }


@pytest.mark.skipif(platform.machine() != "x86_64", reason="a register of x86-64")
def test_flushing_subnormals_is_seen():
    verdict, message = judge("flushes_subnormals", PLAIN, TRACES)[TRACES]
    assert verdict == "failed"
    assert "the floating-point mode" in message


def test_writes_past_the_end_of_an_input():
    found = judge("writes_past_its_input", AROUND, PLAIN)
    verdict, message = found[AROUND]
    assert verdict == "failed"
    assert "the memory around value" in message
    # Other checks give it inputs with unused memory around them: its heap stays whole.
    assert found[PLAIN][0] == "passed"


def alive(group):
    """Return the processes of a session that still run, by what Linux tells."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                state, _, _, session = (
                    (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                )
            except OSError:
                continue
            if int(session) == group and state != "Z":
                found.append(int(entry.name))
    return found


def call(length=2, dim=1):
    x = np.ones((1, 1, length, dim), np.float32)
    return Call({"query": x, "key": x, "value": x})


def open_child(name, timeout=LONG, **options):
    return ChildProcess(TargetConfig(f"{KERNELS}:{name}", **options), timeout)


def test_what_it_started_ends_with_the_run():
    child = open_child("leaves_a_fork")
    group = child._child._process.pid
    child.call(call())
    child.call(call())
    assert len(alive(group)) == 3
    child.close()
    assert eventually(lambda: alive(group) == [])


def test_a_daemon_does_not_hold_up_the_end():
    child = open_child("leaves_a_daemon")
    assert child.call(call()).output is not None
    child.close()  # although the daemon still holds its pipes


@pytest.mark.parametrize("dim", [1, 50_000])
def test_a_target_that_never_reads_again_is_ended(dim, monkeypatch):
    """Whether the next request fits into the pipe or not."""
    child = open_child("good")
    child.call(call())
    os.kill(child._child._process.pid, signal.SIGSTOP)
    monkeypatch.setattr(child, "timeout", 0.5)
    with pytest.raises(TargetDied, match=r"did not return within 0\.5 s"):
        child.call(call(dim=dim))
    child.close()


def test_a_target_that_holds_the_lock_is_ended():
    found = judge("holds_the_lock", PLAIN, "value_on_reals", TRACES, timeout=1.0)
    first, *rest = found.values()
    assert first == ("failed", "the target did not return within 1 s on its first call")
    assert [verdict for verdict, _ in rest] == ["covered", "covered"]


def test_two_hangs_are_enough():
    names = (PLAIN, "value_on_reals", "causality")
    found = judge("hangs_once_in_a_while", *names, timeout=1.0)
    *hung, last = found.values()
    assert [verdict for verdict, _ in hung] == ["failed", "failed"]
    assert last == ("error", "not run: the target did not return 2 times before")


def test_memory_beyond_the_limit_is_refused():
    child = open_child("wants_six_gib")
    first = child._child
    with pytest.raises(
        TargetRaised, match=r"it wanted more than 4 GiB \(Unable to all"
    ):
        child.call(call(2))
    assert child.call(call(1)).output is not None
    assert child._child is not first
    child.close()


def test_a_leak_is_found():
    found = judge("leaks_a_gib", "value_on_reals", "prefix")
    for verdict, message in found.values():
        assert verdict == "failed"
        assert "MemoryError: it wanted more than 4 GiB" in message


def test_a_limit_can_be_chosen():
    child = open_child("leaks_a_gib", memory_limit=0.5)
    with pytest.raises(TargetRaised, match=r"it wanted more than 0.5 GiB"):
        child.call(call())
    child.close()


def test_what_an_exception_says_is_kept_short():
    with pytest.raises(UsageError, match="raised ValueError: xxx") as refused:
        judge("says_too_much", PLAIN)
    assert len(str(refused.value)) < 1000


def test_a_dask_array_is_no_array(dask):
    from_array = import_module("dask.array").from_array

    def kernel(query, key, value):
        return from_array(value)

    report = verify(
        kernel, op="linear_attention", profile="quick", checks=[PLAIN], seed=1
    )
    assert "dask.array.core.Array, not an array" in report.checks[0].message


def test_torch_settings_are_seen(torch):
    def sets_default_dtype(query, key, value):
        torch.set_default_dtype(torch.float64)
        return value

    def turns_gradients_off(query, key, value):
        torch.set_grad_enabled(False)
        return value

    def seeds(query, key, value):
        torch.manual_seed(0)
        return value

    def flushes(query, key, value):
        torch.set_flush_denormal(True)
        return value

    for kernel, words in (
        (sets_default_dtype, "the default dtype of PyTorch"),
        (turns_gradients_off, "the gradient mode of PyTorch"),
        (seeds, "the random state of PyTorch"),
        (flushes, "the floating-point mode"),
    ):
        target = InProcess(TargetConfig("kernel", framework="torch"), kernel)
        before = torch.get_rng_state()
        for _ in range(3):
            assert target.call(call()).traces == (words,)
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.get_default_dtype() == torch.float32
        assert torch.is_grad_enabled()
        assert np.float32(2.0**-140) * np.float32(0.5) != 0


def test_torch_says_in_its_own_words_that_memory_is_short(torch, tmp_path):
    file = tmp_path / "greedy.py"
    file.write_text(
        "import torch\n"
        "def attention(query, key, value):\n"
        "    return value + torch.empty(6 * 2**30, dtype=torch.uint8)[0]\n"
    )
    where = TargetConfig(f"{file}:attention", framework="torch")
    child = ChildProcess(where, LONG)
    with pytest.raises(TargetRaised, match="MemoryError: it wanted more than 4 GiB"):
        child.call(call())
    child.close()


def process():
    state = np.random.get_state()[1].tobytes()  # noqa: NPY002
    return random.getstate(), state, np.geterr(), Path.cwd(), np.exp


def test_in_its_own_process_the_judge_is_left_as_it_was():
    before = process()
    for name in ("changes_the_process", "patches_numpy"):
        judge(name, PLAIN, TRACES, in_process=True)
    for name in ("raises", "exits"):
        with pytest.raises(UsageError, match="on its first call"):
            judge(name, PLAIN, in_process=True)
    assert process() == before


@pytest.mark.parametrize("name", ["exits", "leaves_a_generator"])
def test_leaving_is_only_raising_in_its_own_process(name):
    target = InProcess(TargetConfig(f"{KERNELS}:{name}"))
    with pytest.raises(TargetRaised, match=r"SystemExit|GeneratorExit"):
        target.call(call())
