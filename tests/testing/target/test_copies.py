"""Copies of candidates leave nothing, and no verdict names one."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from linkern.testing import Plan
from linkern.testing.diagnosis.diagnosis import Diagnosis
from linkern.testing.report.report import Report
from linkern.testing.runner.results import CheckResult
from linkern.testing.target.copies import copied, renamed

COPY, ORIGINAL = "/tmp/linkern-x/k.py", "kernels/k.py"


class Pair(NamedTuple):
    first: str
    second: int


@dataclass(frozen=True)
class Some:
    text: str
    inside: Any = None


def test_a_folder_has_the_files_and_is_gone_with_all_that_was_left_in_it():
    with copied({"a.py": "x = 1", "b.py": ""}) as folder:
        assert {x.name for x in folder.iterdir()} == {"a.py", "b.py"}
        assert (folder / "a.py").read_text() == "x = 1"
        (folder / "left").mkdir()
        (folder / "left" / "file").write_text("y")
    assert not folder.exists()


@pytest.mark.parametrize("hold", [list, tuple, Some])
def test_texts_are_renamed_wherever_they_are(hold):
    text = f"wrong at {COPY}:3"
    inside = hold([text]) if hold in (list, tuple) else hold(text)
    nested = Some(text, {"a": inside, "b": (Pair(text, 3), None, np.ones(2))})
    shown = repr(renamed(nested, COPY, ORIGINAL))
    assert COPY not in shown
    assert shown.count(ORIGINAL) == 3
    assert "array([1., 1.])" in shown
    assert COPY in repr(nested)


def test_a_report_names_the_candidate_in_its_cause_too():
    plan = Plan(f"{COPY}:f", "gla", checks=("causality",))
    check = CheckResult("causality", "a law", "failed", message=f"at {COPY}:3")
    check = replace(check, again=f"linkern verify {COPY}:f")
    cause = Diagnosis("raises", f"raises at {COPY}:3", float("nan"))
    report = Report(plan, (check,), cause, notes=(f"{COPY} is new",))
    made = renamed(report, COPY, ORIGINAL)
    assert COPY not in repr(made)
    assert made.plan.target == f"{ORIGINAL}:f"
    assert made.diagnosis.sentence == f"raises at {ORIGINAL}:3"
    assert made.checks[0].again == f"linkern verify {ORIGINAL}:f"
