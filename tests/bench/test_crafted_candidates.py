"""A candidate that does as it likes in its process fails, and the run goes on."""

import sys
from pathlib import Path

import pytest

from linkern.bench import runner
from linkern.bench.candidates import candidate_peer
from linkern.bench.tasks import Task
from linkern.bench.timing import Schedule
from linkern.bench.workers import Process
from tests.testing.crafting_targets import MARKER

TARGETS = Path(__file__).parents[1] / "testing" / "crafting_targets.py"
TASK = Task("causal", "", "causal", (40,), batch=2, heads=2, dim=4)
SCHEDULE = Schedule(rounds=2, budget=1e9, pause=0.0, window=0.0)
WROTE = "failed: its process wrote to the pipe to the referee: "
PATCHES = """
import numpy as np
from linkern.bench import candidates
from linkern.bench.clocks import Turn
from tests.testing.targets import good

Candidate, Kept = candidates.Candidate, candidates.Kept
part = np.zeros((40, 4), np.float32)

def counts_without_end(query, key, value):
    Candidate.kept = lambda self: [Kept(2**60, [0, 0], part)]
    return good(query, key, value)

def keeps_another_head(query, key, value):
    Candidate.kept = lambda self: [Kept(0, [7, 0], part)]
    return good(query, key, value)

def keeps_nothing(query, key, value):
    Candidate.kept = lambda self: []
    return good(query, key, value)

def calls_once_more_only(query, key, value):
    Candidate.again = lambda self, seed: []
    return good(query, key, value)

def takes_no_time(query, key, value):
    Candidate.turn = lambda self, window: Turn(float("nan"), 1)
    return good(query, key, value)
"""

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="pipes are found as on Linux"
)


def remark(target):
    """Return what a run says of a candidate."""
    peers = [candidate_peer(target, "numpy", 1)]
    ((row,),) = runner.run([(TASK, (40,))], peers, SCHEDULE, start=Process)
    assert row.seconds is None
    return row.remark


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("writes_a_pickle", f"{WROTE}bytes that are no message"),
        ("writes_a_pickle_in_a_message", f"{WROTE}"),
        ("announces_an_exabyte", f"{WROTE}arrays of 1152921504606846976 bytes"),
        ("answers_the_wrong_kind", f"{WROTE}a message of another kind than Rows or"),
        ("answers_before_it_is_asked", f"{WROTE}a reply that was not asked for"),
        ("closes_the_pipe", "failed: its process ended its process with exit code"),
    ],
)
def test_what_is_no_reply_fails_it(name, words, tmp_path, monkeypatch):
    monkeypatch.setenv(MARKER, str(tmp_path / "here"))
    assert words in remark(f"{TARGETS}:{name}")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("counts_without_end", "wrong: its process reported an impossible number"),
        ("keeps_another_head", "of head [7, 0]"),
        ("keeps_nothing", "wrong: its process reported an impossible number"),
        ("calls_once_more_only", "wrong: its process reported 0 calls instead of two"),
        ("takes_no_time", "failed: its process reported a time of nan s"),
    ],
)
def test_what_it_says_is_held_against_the_order(name, words, tmp_path):
    (tmp_path / "patches.py").write_text(PATCHES)
    assert words in remark(f"{tmp_path}/patches.py:{name}")
