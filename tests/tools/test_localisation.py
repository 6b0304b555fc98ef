"""The page of faults and their maps: what it says is measured."""

import localisation as tool
import pytest
from localised import HELD_OUT

TEXT = tool.PAGE.read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_page_is_written_from_what_is_measured():
    assert tool.page() == TEXT


def test_eight_faults_have_a_cause_and_a_map():
    assert len(tool.FAULTS) == 8
    assert not HELD_OUT & {*tool.FAULTS}
    sections = TEXT.split("\n## ")[1:]
    for name, section in zip(tool.FAULTS, sections, strict=True):
        assert section.startswith(f"`{name}`: ")
        assert "\ncause: the " in section
        assert "unlike any product" not in section
        assert " down, " in section


def test_a_section_is_measured():
    name = "gates_to_base_two"
    assert f"## `{name}`" in TEXT
    assert tool.section(name, tool.FAULTS[name]) in TEXT
    assert "--declare decay_log_base=2" in TEXT
