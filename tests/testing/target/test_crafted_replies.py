"""A target that writes to the pipe of its process costs a check, and no more."""

import sys
from pathlib import Path

import numpy as np
import pytest

from linkern.testing import run
from linkern.testing.api import plan_of
from linkern.testing.errors import TargetDied, TargetRaised
from linkern.testing.runner.loop import CheckFinished
from linkern.testing.target.answers import usable_reply
from linkern.testing.target.process import ChildProcess
from linkern.testing.target.protocol import Call, Reply, TargetConfig
from tests.testing.crafting_targets import MARKER
from tests.waiting import LONG

KERNELS = Path(__file__).parents[1] / "crafting_targets.py"
WROTE = "wrote to the pipe to the referee: "

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="pipes are found as on Linux"
)


@pytest.fixture(autouse=True)
def marker(tmp_path, monkeypatch):
    """Set the folder that a crafted pickle makes, wherever it is read."""
    monkeypatch.setenv(MARKER, str(tmp_path / "here"))
    yield tmp_path / "here"
    assert not (tmp_path / "here").exists()


@pytest.fixture
def child():
    opened = []

    def open_child(name, timeout=LONG):
        opened.append(ChildProcess(TargetConfig(f"{KERNELS}:{name}"), timeout))
        return opened[-1]

    yield open_child
    for process in opened:
        process.close()


def call():
    x = np.ones((1, 1, 2, 1), np.float32)
    return Call({"query": x, "key": x, "value": x})


def test_packed_sequences_have_as_many_states():
    x = np.ones((1, 1, 5, 4), np.float32)
    inputs = {"query": x, "key": x, "value": x, "log_decay": x[..., 0] * 0}
    process = ChildProcess(TargetConfig("linkern:simple_gla", op="simple_gla"), LONG)
    try:
        reply = process.call(Call(inputs, segments=((0, 2, 2, 5),)))
    finally:
        process.close()
    assert reply.states is not None
    assert reply.states[0].shape == (3, 1, 4, 4)


def test_a_reply_has_no_more_states_than_the_operator():
    x, state = np.ones((1, 1, 2, 1), np.float32), np.zeros((1, 1, 1, 1))
    reply = Reply(x, "float32", "numpy.ndarray", x.shape, x.shape, states=(state,) * 3)
    with pytest.raises(TargetDied, match="3 states of 2"):
        usable_reply(reply, call(), TargetConfig("kernel"))


def call_often(process, times):
    """Call more than once: what came twice is met by the next call."""
    for _ in range(times):
        process.call(call())


def test_the_marker_shows_what_a_pickle_would_do(marker):
    import pickle

    from tests.testing.crafting_targets import Payload

    pickle.loads(pickle.dumps(Payload()))
    assert marker.is_dir()
    marker.rmdir()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("writes_a_pickle", "bytes that are no message"),
        ("writes_a_pickle_in_a_message", "a malformed message"),
        ("answers_itself", "a reply that was not asked for"),
        ("answers_twice", "a reply that was not asked for"),
        ("answers_before_it_is_asked", "a reply that was not asked for"),
        ("announces_a_header", "a header of 4294967295 bytes, where there can be"),
        ("announces_an_exabyte", "arrays of 1152921504606846976 bytes, where"),
        ("answers_the_wrong_kind", "another kind than Reply or Raised"),
        ("nests", "a malformed message"),
        ("answers_another_call", "a reply to another call"),
        ("answers_with_another_output", "an output of another shape"),
        ("answers_with_integers", "an array of dtype int64"),
        ("forks_and_both_answer", "a reply that was not asked for"),
    ],
)
def test_a_reply_that_is_none_is_named_and_survived(child, name, words):
    process = child(name)
    with pytest.raises(TargetDied, match=WROTE) as died:
        call_often(process, 3)
    assert words in died.value.reason
    assert not died.value.hung
    assert process._child is None


def test_an_answer_that_comes_late_is_that_of_no_other_call(child):
    process = child("answers_later")
    with pytest.raises(TargetDied, match=f"{WROTE}a reply that was not asked for"):
        call_often(process, 1000)


def test_a_pipe_that_is_closed_ends_the_process(child):
    with pytest.raises(TargetDied, match="ended its process with exit code"):
        child("closes_the_pipe").call(call())


def test_half_a_message_is_waited_for_no_longer_than_a_whole_one(child, monkeypatch):
    process = child("writes_half_a_message_and_hangs")
    monkeypatch.setattr(process, "timeout", 0.5)
    with pytest.raises(TargetDied, match=r"did not return within 0\.5 s"):
        process.call(call())


def test_what_it_says_reaches_no_terminal_as_it_is(child):
    with pytest.raises(TargetRaised) as raised:
        child("raises_control_characters").call(call())
    assert str(raised.value) == "?[2J?"


@pytest.mark.parametrize("name", ["writes_a_pickle", "answers_itself"])
@pytest.mark.parametrize("jobs", [1, 2])
def test_every_check_has_a_verdict(name, jobs):
    checks = ("shape_and_dtype", "causality", "prefix")
    plan = plan_of(
        f"{KERNELS}:{name}",
        op="linear_attention",
        checks=checks,
        profile="quick",
        dtypes=("float32",),
        diagnose=False,
        timeout=LONG,
        jobs=jobs,
    )
    results = [e.result for e in run(plan) if isinstance(e, CheckFinished)]
    assert [result.name for result in results] == [*checks]
    first, *rest = results
    assert first.verdict == "failed"
    assert first.message.startswith(f"the target {WROTE}")
    assert {result.verdict for result in rest} <= {"failed", "covered"}
