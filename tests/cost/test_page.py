"""The page about costs says what the cost model says now."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("cost_table")


def law_page_is_current(page):
    assert page() == (ROOT / "docs" / "cost.md").read_text(encoding="utf-8")


def test_the_page_is_current(tool):
    law_page_is_current(tool.page)


def test_a_page_of_other_numbers_is_caught(tool, monkeypatch):
    monkeypatch.setattr(tool, "LENGTH", 4095)
    with pytest.raises(AssertionError):
        law_page_is_current(tool.page)
