"""The page `docs/measured.md` shows the recorded runs."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("speed_table")


def law_page_is_current(page):
    assert page() == (ROOT / "docs" / "measured.md").read_text(encoding="utf-8")


def test_the_page_is_current(tool):
    law_page_is_current(tool.page)


def test_a_run_that_is_missing_is_caught(tool, monkeypatch):
    monkeypatch.setattr(tool, "RUNS", "speed-0*.json")
    with pytest.raises(AssertionError):
        law_page_is_current(tool.page)
