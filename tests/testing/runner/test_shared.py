"""A target that is asked for one check at a time is opened as rarely as it can be."""

import pytest

from linkern.testing import CHECKS, Plan, UsageError
from linkern.testing.diagnosis.diagnosis import Diagnosis
from linkern.testing.runner import shared

NAMES = list(CHECKS)[:4]


@pytest.fixture
def log(monkeypatch):
    """Replace sessions by such as judge nothing; return what they were asked to do."""
    log = []

    class Session:
        def __init__(self, plan):
            log.append(f"open {plan.target}")
            self.plan, self.broken = plan, ()
            if plan.target == "missing:f":
                msg = "no such target."
                raise UsageError(msg)

        def result(self, question):
            self.broken = ("float32",)
            log.append(question.check.name)
            return question.check.name

        def diagnosis(self):
            log.append("diagnose")
            return Diagnosis("eps", "an epsilon", 0.1)

        def close(self):
            log.append("close")

    monkeypatch.setattr(shared, "Session", Session)
    return log


def plan(target="kernels:good"):
    return Plan(target, "linear_attention", checks=tuple(NAMES))


def test_in_any_order_one_process_is_enough(log):
    session, judged = shared.SharedSession(), plan()
    order = [NAMES[2], NAMES[0], NAMES[3], NAMES[0]]
    assert [session.result(judged, name) for name in order] == order
    assert log == ["open kernels:good", *order]
    session.close()
    assert log[-1] == "close"


def test_another_plan_takes_its_place(log):
    session = shared.SharedSession()
    for _ in range(2):
        session.result(plan(), NAMES[0])
    assert log == ["open kernels:good", NAMES[0], "close", *log[:2]]


def test_a_cause_is_looked_for_once(log):
    session, judged = shared.SharedSession(), plan()
    session.result(judged, NAMES[0])
    assert session.cause(judged) is session.cause(judged)
    assert log.count("diagnose") == 1


def test_a_target_that_cannot_be_loaded_is_loaded_once(log):
    session, judged = shared.SharedSession(), plan("missing:f")
    for name in NAMES:
        with pytest.raises(UsageError, match="no such target"):
            session.result(judged, name)
    assert log == ["open missing:f"]
