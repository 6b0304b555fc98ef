"""`linkern demo`: the fault is named, and a demo that does not find it has failed."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from linkern.cli import demonstration, main, verdicts
from tests.marks import every

GOOD = f"{Path(__file__).parents[1] / 'testing' / 'targets.py'}:good"


@pytest.fixture(autouse=True)
def trusted(monkeypatch):
    monkeypatch.setattr(verdicts, "run_canaries", lambda seed: None)


def test_the_demo_shows_the_kernel_its_fault_and_what_comes_next():
    result = CliRunner().invoke(main, ["demo"])
    assert result.exit_code == 0, result.output
    for text in (
        "def attention(query",
        "$ linkern verify linkern.testing.kernels.faulty:attention",
        "cause: the output lacks pairs across edges of chunks of 64",
        "linkern verify your_package.module:kernel",
    ):
        assert text in result.output


@pytest.mark.parametrize(
    ("target", "code"), every(2, [("linkern.nowhere:attention", 2), (GOOD, 1)])
)
def test_a_fault_that_is_not_found_fails_the_demo(monkeypatch, target, code):
    words = (target, *demonstration.WORDS[1:], "--profile", "smoke")
    monkeypatch.setattr(demonstration, "WORDS", words)
    result = CliRunner().invoke(main, ["demo"])
    assert result.exit_code == code
    assert "Judge a kernel of yours" not in result.output
