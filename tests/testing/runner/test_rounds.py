"""Runs with a time: few examples of every law before many of any."""

import re
from contextlib import contextmanager
from dataclasses import replace

import pytest

from linkern.testing import Plan, UsageError
from linkern.testing.api import report_of, reports
from linkern.testing.errors import OutOfTime
from linkern.testing.report.counting import conclusion
from linkern.testing.runner.loop import Diagnosed, Shrunk, TimeOver, run
from linkern.testing.runner.results import CheckResult
from linkern.testing.runner.rounds import merged
from linkern.testing.target.clock import Clock
from tests.testing.diagnosis.unlisted import dense, plus
from tests.testing.linear_kernels import CORRECT
from tests.testing.targets import good

NAMES = ("value_on_integers", "causality", "row_normalisation", "value_on_reals")
RIGHT = CORRECT["chunk_32_with_state"]
WITH_EPSILON = dense(divide=plus(1e-6))


class Countdown(Clock):
    """A clock that counts calls of the target, not seconds."""

    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    @property
    def left(self):
        return self.calls

    def require(self):
        self.calls -= 1
        super().require()


def plan(function, **options):
    given = {"checks": NAMES, "dtypes": ("float32",), "seconds": 1000.0, "seed": 0}
    return Plan("test", "linear_attention", function=function, **(given | options))


def last(plan, clock=None):
    report = report_of(plan)
    for _, so_far in reports(plan, clock):
        report = so_far
    return report


def test_every_law_gets_few_examples_before_any_gets_many():
    report = last(plan(RIGHT, profile="quick", seed=5))
    rounds = [(one.profile, one.seed, one.judged) for one in report.rounds]
    assert rounds == [("smoke", 5, 4), ("quick", 6, 4)]
    assert report.verdict == "passed"
    assert report.complete
    assert not report.time_over
    assert "examples: smoke (seed 5), quick (seed 6)" in str(report)


def test_a_round_is_judged_again_without_a_clock():
    timed = last(plan(RIGHT, profile="quick"))
    alone = [
        last(plan(RIGHT, seconds=None, profile=one.profile, seed=one.seed))
        for one in timed.rounds
    ]
    for check in timed.checks:
        parts = [x for report in alone for x in report.checks if x.name == check.name]
        assert check.examples == sum(part.examples for part in parts)
        assert check.worst_ratio == max(part.worst_ratio for part in parts)
        assert check.ratios == tuple(x for part in parts for x in part.ratios)


def test_the_round_in_which_a_law_breaks_is_the_last():
    judged = plan(WITH_EPSILON)
    report = last(judged)
    assert [one.profile for one in report.rounds] == ["smoke"]
    assert report.rounds[0].complete
    assert report.verdict == "failed"
    assert report.diagnosis.declaration == ("eps=1e-6",)
    first = report.failures[0]
    assert "--profile smoke --seed 0" in first.again or "'smoke'" in first.again
    # Only the first is made small, and what it says is what a run without a clock says.
    alone = last(plan(WITH_EPSILON, seconds=None, profile="smoke"))
    assert first.counterexample.input == alone.failures[0].counterexample.input
    names = [type(event) for event in run(judged)]
    assert names.count(Shrunk) == 1
    assert names[-1] is Diagnosed


def test_a_violation_that_few_examples_miss_is_found_in_a_later_round():
    calls = []

    def wears_out(query, key, value):
        calls.append(1)
        return good(query, key, value) * (1 if len(calls) < 60 else 2)

    report = last(plan(wears_out, checks=("value_on_integers",)))
    assert report.verdict == "failed"
    last_round = report.rounds[-1]
    assert len(report.rounds) > 1
    again = f"--profile {last_round.profile} --seed {last_round.seed}"
    assert again in report.failures[0].again


def test_before_every_law_is_judged_nothing_passes():
    report = last(plan(RIGHT), Countdown(14))
    assert report.time_over
    assert report.complete
    assert report.verdict == "inconclusive"
    assert report.exit_code == 3
    assert report.not_run
    assert not report.rounds[0].complete
    assert str(report).endswith("checks run within 1000 s, and passed")


def test_what_the_time_left_out_is_named_with_what_would_run_it():
    judged = plan(RIGHT)
    report = last(judged, Countdown(14))
    ran = len(NAMES) - len(report.not_run)
    text = " ".join(str(report).split())
    assert f"not run: {', '.join(report.not_run)} to run them: `--seconds" in text
    seconds = int(re.search(r"--seconds (\d+)", text)[1])
    assert 0 <= seconds - 1300 * len(NAMES) / ran < 10
    assert "or `--dtype" not in text
    report = last(replace(judged, dtypes=("float32", "float64")), Countdown(14))
    assert "or `--dtype float32`" in " ".join(str(report).split())


def test_what_is_not_judged_is_said_however_short_the_time_is():
    judged = plan(RIGHT, checks=(*NAMES, "decay_extremes"))
    report = last(judged, Countdown(14))
    assert report.not_run
    assert "decay_extremes" not in report.not_run


@pytest.mark.parametrize(
    ("required", "verdict", "words"),
    [
        (("1", "value_on_integers"), "passed", "passed what ran: "),
        (("value_on_reals",), "inconclusive", "; required: value_on_reals"),
        (("4",), "inconclusive", " more check"),
    ],
)
def test_what_is_required_is_enough(required, verdict, words):
    report = last(plan(RIGHT, require=required), Countdown(14))
    assert report.time_over
    assert report.not_run
    assert report.verdict == verdict
    assert report.exit_code == (0 if verdict == "passed" else 3)
    assert words in conclusion(report)
    assert words in " ".join(str(report).split())
    assert bool(report.lacking) == (verdict == "inconclusive")


@pytest.mark.parametrize(
    ("required", "words"),
    [
        (("decoding",), "names decoding, which this plan leaves out"),
        (("5",), "asks for 5 checks, and this plan has 4"),
        (("causalty",), 'did you mean "causality"'),
    ],
)
def test_what_is_never_judged_cannot_be_required(required, words):
    with pytest.raises(UsageError, match=words):
        plan(RIGHT, require=required)


def test_a_required_check_that_does_not_apply_is_not_judged():
    names = ("value_on_integers", "packed_states")
    asked = plan(RIGHT, seconds=None, checks=names, require=names[1:])
    report = last(asked)
    assert report.lacking == names[1:]
    assert report.verdict == "inconclusive"
    assert conclusion(report).endswith("1 check passed; required: packed_states")


def test_what_is_required_does_not_hide_a_failure():
    names = ("value_on_integers", "ranges", "row_normalisation")
    asked = plan(WITH_EPSILON, seconds=None, checks=names, require=("1",))
    assert last(asked).verdict == "failed"


def test_after_the_first_round_the_time_changes_no_verdict():
    whole = last(plan(RIGHT, profile="smoke"))
    report = last(plan(RIGHT), Countdown(100))
    assert report.time_over
    assert report.verdict == "passed"
    assert [one.complete for one in report.rounds] == [True, False]
    assert {x.name for x in report.checks} == {x.name for x in whole.checks}


class Generous(Countdown):
    """A clock that leaves time enough for what follows the rounds."""

    @contextmanager
    def without(self, _seconds):
        try:
            yield
        except OutOfTime:
            self.calls = 10**9
            raise


def test_a_violation_is_explained_though_the_time_for_others_is_over():
    whole = last(plan(WITH_EPSILON, seconds=None, profile="smoke"))
    report = last(plan(WITH_EPSILON), Generous(25))
    assert report.time_over
    assert report.not_run
    assert report.verdict == "failed"
    assert report.diagnosis == whole.diagnosis
    assert report.failures[0].counterexample.input == (
        whole.failures[0].counterexample.input
    )


def test_a_violation_stands_when_the_time_ends_the_search_for_a_smaller_one():
    calls, events = Countdown(10**9), []
    for event in run(plan(WITH_EPSILON), calls):
        events.append(event)
        if type(event).__name__ == "CheckFinished" and event.result.name == NAMES[-1]:
            calls.calls = 12
    assert isinstance(events[-1], TimeOver)
    assert isinstance(events[-2], Diagnosed)  # the cause is looked for all the same
    failed = [e.result for e in events if type(e).__name__ == "CheckFinished"]
    assert "failed" in {result.verdict for result in failed}


def test_several_processes_find_what_one_finds():
    target = "examples/chunked_attention.py:with_epsilon"
    judged = replace(plan(None), target=target)
    one, two = (last(replace(judged, jobs=jobs)) for jobs in (1, 2))
    assert [(x.name, x.verdict, x.examples) for x in one.checks] == [
        (x.name, x.verdict, x.examples) for x in two.checks
    ]
    assert one.diagnosis == two.diagnosis


def test_the_worse_verdict_of_two_rounds_counts():
    old = CheckResult("x", "a law", "passed", examples=3, worst_ratio=0.5)
    new = CheckResult("x", "a law", "failed", examples=2, worst_ratio=4.0, message="m")
    result = merged({"x": old}, new)
    assert (result.verdict, result.message) == ("failed", "m")
    assert (result.examples, result.worst_ratio) == (5, 4.0)
    assert merged({"x": new}, old).verdict == "failed"
    skipped = CheckResult("x", "a law", "skipped")
    assert merged({"x": skipped}, old).verdict == "passed"


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_in_which_nothing_can_be_judged_is_refused(seconds):
    with pytest.raises(UsageError, match="`seconds` must be a positive number"):
        plan(RIGHT, seconds=seconds)


def test_an_expected_failure_is_awaited_in_time():
    awaited = last(plan(RIGHT, expect_failure={"causality": "known"}, profile="quick"))
    results = {check.name: check for check in awaited.checks}
    assert results["causality"].verdict == awaited.verdict == "inconclusive"
    assert "expected to fail (known), and it holds in" in results["causality"].message
    assert [one.profile for one in awaited.rounds] == ["smoke", "quick"]


def test_an_expected_failure_that_is_seen_in_time_ends_no_run():
    laws = ("row_normalisation", "value_on_reals")
    known = dict.fromkeys(laws, "it adds an epsilon")
    seen = last(plan(WITH_EPSILON, checks=laws, expect_failure=known, profile="quick"))
    assert seen.exit_code == 0
    assert {check.verdict for check in seen.checks} == {"xfailed"}
    assert [one.profile for one in seen.rounds] == ["smoke", "quick"]


def test_an_expected_failure_need_be_seen_in_one_round_only():
    seen = CheckResult("x", "a law", "xfailed", message="seen")
    awaited = CheckResult("x", "a law", "inconclusive", message="awaited")
    failed = CheckResult("x", "a law", "failed", message="another one")
    for pair in ((seen, awaited), (awaited, seen)):
        assert merged({"x": pair[0]}, pair[1]).message == "seen"
    assert merged({"x": seen}, failed).message == "another one"
