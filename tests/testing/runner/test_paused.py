"""A run that is asked for one check at a time starts its target as rarely as it can."""

import pytest

from linkern.testing import CHECKS, CheckResult, Plan, UsageError
from linkern.testing.runner import paused
from linkern.testing.runner.loop import CheckFinished, CheckStarted

NAMES = list(CHECKS)[:4]


@pytest.fixture
def runs(monkeypatch):
    """Replace the runner by one that judges nothing; return what it was asked to do."""
    runs = []

    def run(plan):
        if plan.target == "missing:f":
            runs.append("refused")
            msg = "no such target."
            raise UsageError(msg)
        runs.append([check.name for check in plan.chosen()])
        try:
            for check in plan.chosen():
                yield CheckStarted(check.name, 0, 1)
                runs.append(check.name)
                result = CheckResult(check.name, check.statement, "passed")
                yield CheckFinished(result)
        finally:
            runs.append("closed")

    monkeypatch.setattr(paused, "run", run)
    return runs


def plan(target="kernels:good", **options):
    return Plan(target, "linear_attention", checks=tuple(NAMES), **options)


def test_in_order_one_process_is_enough(runs):
    stepper, judged = paused.PausedRun(), plan()
    stepper.start(judged)
    assert runs == [NAMES]
    for name in NAMES:
        assert stepper.result(judged, name).name == name
    assert runs == [NAMES, *NAMES, "closed"]


def test_out_of_order_only_what_is_asked_for_is_run(runs):
    stepper, judged = paused.PausedRun(), plan()
    for name in (NAMES[2], NAMES[3], NAMES[0]):
        assert stepper.result(judged, name).name == name
    assert runs == [NAMES[2:], *NAMES[2:], "closed", NAMES, NAMES[0]]
    stepper.close()
    assert runs[-1] == "closed"


def test_another_plan_ends_the_run(runs):
    stepper = paused.PausedRun()
    for _ in range(2):
        stepper.result(plan(), NAMES[0])
    assert runs == [NAMES, NAMES[0], "closed", NAMES, NAMES[0]]


def test_what_is_expected_of_earlier_checks_is_no_part_of_the_rest(runs):
    judged = plan(expect_failure=dict.fromkeys(NAMES, "known"))
    assert paused.PausedRun().result(judged, NAMES[1]).verdict == "passed"


def test_a_target_that_cannot_be_loaded_is_loaded_once(runs):
    stepper, judged = paused.PausedRun(), plan("missing:f")
    for name in NAMES:
        with pytest.raises(UsageError, match="no such target"):
            stepper.result(judged, name)
    assert runs == ["refused"]
