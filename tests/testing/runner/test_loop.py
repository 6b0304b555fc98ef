"""The loop over the checks: it stops where it was told to."""

from dataclasses import replace

import numpy as np
import pytest

from linkern.testing import CHECKS, Plan, verify
from linkern.testing.checks import SMOKE
from linkern.testing.report.html import page
from linkern.testing.runner import judging, session
from linkern.testing.runner.loop import CheckFinished, Diagnosed, run
from linkern.testing.runner.plan import PROFILES
from tests.testing.diagnosis.unlisted import dense, plus
from tests.testing.linear_kernels import CORRECT

# In the order in which they run.
NAMES = ("value_on_integers", "causality", "row_normalisation", "value_on_reals")
OPTIONS = {"op": "linear_attention", "dtypes": ("float32",), "profile": "quick"}
WITH_EPSILON = dense(divide=plus(1e-6))


@pytest.mark.parametrize(
    ("each", "seconds", "given"),
    [(0.0, None, 0.0), (100.0, None, 50.0), (900.0, None, 120.0), (0.0, 600, 500.0)],
)
def test_a_diagnosis_takes_a_part_of_the_time_of_the_checks(
    monkeypatch, each, seconds, given
):
    asked = []

    def judge(*args):
        judgement = judging.judge(*args)
        return replace(judgement, result=replace(judgement.result, seconds=each))

    def examine(*args, **options):
        asked.append(options["seconds"])
        return examined(*args, **options)

    examined = session.examine
    monkeypatch.setattr(session, "judge", judge)
    monkeypatch.setattr(session, "examine", examine)
    verify(
        WITH_EPSILON,
        checks=NAMES[:1],
        seconds=seconds,
        **{**OPTIONS, "profile": "smoke"},
    )
    assert asked
    assert asked[0] == given if seconds is None else given < asked[0] < seconds


def test_a_run_stops_at_its_first_failure_and_names_the_cause():
    report = verify(WITH_EPSILON, checks=NAMES, fail_fast=True, **OPTIONS)
    assert [check.verdict for check in report.checks] == ["failed"]
    assert report.complete
    assert report.stopped
    assert report.not_run == NAMES[1:]
    assert report.diagnosis is not None
    assert report.diagnosis.stage == "output"
    assert report.diagnosis.declaration == ("eps=1e-6",)
    assert str(report).endswith("failed: the only check run, 3 not run (--fail-fast)")
    assert report.to_dict()["not_run"] == list(NAMES[1:])
    assert f"Stopped at the first failure.</strong> Not run: {NAMES[1]}" in page(report)


def test_without_a_failure_nothing_is_left_out():
    report = verify(
        CORRECT["chunk_32_with_state"], checks=NAMES, fail_fast=True, **OPTIONS
    )
    assert [check.name for check in report.checks] == list(NAMES)
    assert report.complete
    assert not report.stopped
    assert "not run" not in str(report)


def test_an_expected_failure_does_not_end_a_run():
    known = dict.fromkeys(NAMES, "known")
    plan = Plan(
        "test",
        checks=NAMES,
        expect_failure=known,
        function=lambda query, key, value: np.zeros_like(value),
        fail_fast=True,
        shrink=False,
        **OPTIONS,
    )
    verdicts = [e.result.verdict for e in run(plan) if isinstance(e, CheckFinished)]
    # The past of an output that is always zero does not change.
    assert verdicts == ["xfailed", "failed"]


@pytest.mark.parametrize(("calls", "repeats"), [(0, True), (8, False)])
def test_a_counterexample_is_tried_in_a_new_process(tmp_path, calls, repeats):
    path = tmp_path / "kernel.py"
    path.write_text(
        f"""
from itertools import count
import linkern

calls = count()

def kernel(query, key, value):
    output = linkern.linear_attention(query, key, value).output
    return 2 * output if next(calls) >= {calls} else output
"""
    )
    report = verify(f"{path}:kernel", checks=("value_on_reals",), **OPTIONS)
    first = report.failures[0]
    assert first.counterexample.repeats is repeats
    assert ("as a program, for an issue" in str(report)) is repeats
    assert ("alone     right in a new process" in str(report)) is not repeats
    # It takes all checks to show what depends on the calls before.
    assert (f"--check {first.name}" in first.again) is repeats
    named = "output_twice" if repeats else "state_kept_between_calls"
    assert report.diagnosis.name == named


def test_what_ends_its_new_process_was_not_tried(tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text(
        """
import os
import linkern

def kernel(query, key, value):
    if not os.path.exists(__file__ + ".first"):
        open(__file__ + ".first", "w").close()
        calls[:] = [0] * 1000
    if not calls:
        os._exit(1)
    return 2 * linkern.linear_attention(query, key, value).output

calls = []
"""
    )
    report = verify(f"{path}:kernel", checks=NAMES, **OPTIONS)
    assert report.failures[0].counterexample.repeats is None
    assert f"--check {report.failures[0].name}" in report.failures[0].again


def test_without_it_all_checks_run():
    plan = Plan("test", checks=NAMES, function=WITH_EPSILON, **OPTIONS)
    events = list(run(plan))
    finished = [e.result.name for e in events if isinstance(e, CheckFinished)]
    assert finished == list(NAMES)
    assert isinstance(events[-1], Diagnosed)


def test_checks_run_in_the_order_of_the_registry():
    plan = Plan("test", "linear_attention", checks=tuple(reversed(CHECKS)))
    assert [check.name for check in plan.chosen()] == list(CHECKS)


def test_the_smoke_profile_says_what_it_leaves_out():
    kernel = CORRECT["chunk_32_with_state"]
    report = verify(kernel, **{**OPTIONS, "profile": "smoke"})
    verdicts = {check.name: check for check in report.checks}
    judged = {name for name, check in verdicts.items() if check.verdict == "passed"}
    assert {"value_on_integers", "causality", "state_split"} <= judged <= {*SMOKE}
    assert 0 < max(check.examples for check in report.checks) < PROFILES["quick"]
    left_out = verdicts["thread_safety"]
    assert left_out.verdict == "skipped"
    assert left_out.remedies == ("take `--profile quick`",)
    applying = len(judged) + sum(
        check.remedies == left_out.remedies for check in report.checks
    )
    count = f"passed: all {len(judged)} of smoke, of {applying} checks that apply"
    assert str(report).endswith(count)
    # What says nothing of the operator is not said to be left out.
    assert verdicts["decay_extremes"].verdict == "not_applicable"


def test_a_check_that_is_named_is_in_every_profile():
    plan = Plan("test", "linear_attention", profile="smoke", checks=("prefix",))
    assert plan.leaves_out(CHECKS["prefix"]) is None
