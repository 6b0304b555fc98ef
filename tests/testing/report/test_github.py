"""Annotations: on the right line, escaped, one for each failure."""

from linkern.testing import verify
from linkern.testing.report import github

KERNEL = """import numpy as np


def first_value(query, key, value):
    return np.broadcast_to(value[..., :1, :], value.shape).copy()


def raises(query, key, value):
    if query.shape[-2] > 1:
        raise ValueError("no: 100%, not, this")
    return value
"""


def judged(attribute):
    return verify(
        f"kernel.py:{attribute}",
        op="linear_attention",
        profile="quick",
        checks=["value_on_integers", "short_sequences"],
        dtypes=("float32",),
        in_process=True,
        expect_failure={"short_sequences": "the first call may raise"}
        if attribute == "raises"
        else {},
    )


def test_a_failure_is_shown_on_the_line_of_the_kernel(tmp_path, monkeypatch):
    (tmp_path / "kernel.py").write_text(KERNEL)
    monkeypatch.chdir(tmp_path)
    report = judged("first_value")
    (line,) = github.annotations(report)
    assert line.startswith(
        "::error file=kernel.py,title=linkern%3A value_on_integers,line=4::"
    )
    assert "\n" not in line
    assert "Smallest input: B=1 H=1" in line
    assert "### ❌ linkern" in github.summary(report)


def test_an_exception_is_shown_on_the_line_that_raised_it(tmp_path, monkeypatch):
    (tmp_path / "kernel.py").write_text(KERNEL)
    monkeypatch.chdir(tmp_path)
    lines = [*github.annotations(judged("raises"))]
    (line,) = (x for x in lines if "value_on_integers" in x)
    assert ",line=10::" in line
    assert "100%25, not, this" in line
