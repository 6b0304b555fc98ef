"""The cheat sheet of declarations is about the declarations that there are."""

import declarations_page as tool
import pytest

from linkern.testing.spec.declarations import DECLARATIONS


def test_the_page_is_written_from_the_code():
    assert tool.PAGE.read_text(encoding="utf-8") == tool.page()


def test_each_declaration_has_one_row():
    rows = [line for line in tool.page().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1].partition("=")[0] for row in rows] == [*DECLARATIONS]


def test_a_declaration_without_a_meaning_is_seen(monkeypatch):
    meanings = tool.meanings()
    del meanings["layout"]
    monkeypatch.setattr(tool, "meanings", lambda: meanings)
    with pytest.raises(KeyError, match="layout"):
        tool.page()
