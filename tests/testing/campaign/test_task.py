"""A task is judged from what it carries, and whatever happens is an outcome."""

from dataclasses import replace

import pytest

from linkern.testing import UsageError
from linkern.testing.api import plan_of
from linkern.testing.campaign import task as tasks
from linkern.testing.campaign.task import Task, Unjudged, judged

WRONG = """
from helper import halved

def kernel(query, key, value):
    return halved(value)
"""
HELPER = "def halved(x):\n    return x / 2\n"


def plan(target, *checks):
    return plan_of(
        target,
        op="linear_attention",
        dtypes=["float32"],
        profile="smoke",
        checks=checks or ["value_on_integers"],
        jobs=1,
        seed=0,
    )


def test_a_candidate_is_judged_where_its_files_are_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = {"wrong.py": WRONG, "helper.py": HELPER}
    report = judged(Task(plan("some/wrong.py:kernel"), files))
    assert report.verdict == "failed"
    assert report.plan.target == "some/wrong.py:kernel"
    assert " some/wrong.py:kernel " in report.checks[0].again
    assert "linkern-" not in str(report)
    assert not [*tmp_path.iterdir()]


def test_a_candidate_that_cannot_be_loaded_is_refused_by_its_name():
    outcome = judged(Task(plan("some/wrong.py:kernel"), {"wrong.py": WRONG}))
    assert outcome.verdict == "refused"
    assert 'importing "some/wrong.py" failed' in outcome.message
    assert "No module named 'helper'" in outcome.message


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ValueError("bad"), Unjudged("error", "ValueError: bad")),
        (UsageError("no such"), Unjudged("refused", "no such")),
    ],
)
def test_an_exception_is_an_outcome(monkeypatch, error, outcome):
    def reports(plan):
        raise error

    monkeypatch.setattr(tasks, "reports", reports)
    assert judged(Task(plan("linkern:gla"))) == outcome


def test_another_version_judges_nothing():
    task = replace(Task(plan("linkern:gla")), version="0.0.1")
    assert judged(task).verdict == "error"
    assert "and the campaign 0.0.1; install one version" in judged(task).message
