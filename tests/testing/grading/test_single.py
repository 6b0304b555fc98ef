"""Grades of one candidate: what cannot be used is refused, not raised."""

import numpy as np
import pytest

from linkern.testing import UsageError, grade
from tests.testing.diagnosis.unlisted import dense, plus
from tests.testing.linear_kernels import CORRECT

QUICK = {"op": "linear_attention", "seconds": 600.0, "dtypes": ["float32"], "seed": 3}


def test_a_correct_kernel_has_a_score_of_one():
    one = grade(CORRECT["chunk_32_with_state"], profile="smoke", **QUICK)
    assert (one.verdict, one.score, one.broken) == ("passed", 1.0, ())
    assert one.judged == one.kept == one.laws > 20
    assert one.cause is None
    assert one.counterexample is None
    assert [each.profile for each in one.rounds] == ["smoke"]


def test_a_faulty_kernel_has_a_cause_and_a_small_counterexample():
    one = grade(dense(divide=plus(1e-6)), **QUICK)
    assert one.verdict == "failed"
    assert 0 < one.score < 1
    assert one.cause.stage == "output"
    assert one.cause.declaration == ("eps=1e-6",)
    assert one.counterexample.law == one.broken[0]
    assert one.counterexample.input.startswith("B=1 H=1 T=")
    assert one.seed == one.rounds[0].seed == 3


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("examples/chunked_attention.py:absent", "has no attribute"),
        ("absent.py:kernel", "absent.py"),
        (lambda query: query, "does not allow it"),
    ],
)
def test_what_cannot_be_called_is_refused(target, said):
    one = grade(target, **QUICK)
    assert (one.verdict, one.score, one.laws) == ("refused", 0.0, 0)
    assert said in one.message


def test_a_candidate_that_is_not_loaded_in_time_is_refused(tmp_path):
    place = tmp_path / "hangs.py"
    place.write_text("import time\ntime.sleep(10**6)\n")
    one = grade(f"{place}:kernel", **(QUICK | {"seconds": 0.5}))
    assert (one.verdict, one.score) == ("refused", 0.0)
    assert "did not return within" in one.message


def test_a_wrong_option_is_an_error_of_the_grader():
    for wrong in ({"op": "nothing"}, {"seconds": -1.0}, {"contract": {"x": 1}}):
        with pytest.raises(UsageError):
            grade(np.zeros_like, **(QUICK | wrong))
