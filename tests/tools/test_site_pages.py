"""The generated pages of the site: one for each operator and check, all complete."""

import ast
import re

import check_pages
import operator_pages
import pytest
import site_pages

from linkern.adapters.catalogue import PUBLISHED, function_of
from linkern.adapters.entry import Entry
from linkern.testing import CHECKS, OPERATORS
from linkern.testing.checks import OF_LAUNCHES

PAGES = site_pages.pages()


def sections(page):
    """Return the text of each section of a page by its title."""
    parts = re.split(r"^(.+)\n-{3,}$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_operator_has_a_page_with_all_sections():
    functions = {function_of(one.name)[0] for one in OPERATORS.values()}
    written = {name for name in PAGES if name.startswith("operators/")}
    assert written == {f"operators/{name}" for name in (*functions, "step")}
    for name in written:
        texts = sections(PAGES[name])
        assert tuple(texts) == operator_pages.SECTIONS, name
        assert all(len(text.strip()) > 20 for text in texts.values()), name
        assert ">>> " in texts["Example"], name
        assert "Time is the last axis but one" in texts["Conventions"] or (
            name == "operators/step"
        )


def test_every_check_has_a_page_with_all_sections():
    written = {name for name in PAGES if name.startswith("checks/")}
    assert written == {f"checks/{name}" for name in CHECKS}
    for name in written:
        texts = sections(PAGES[name])
        assert tuple(texts) == check_pages.SECTIONS, name
        assert all(len(text.strip()) > 20 for text in texts.values()), name


@pytest.mark.parametrize("folder", ["operators", "checks"])
def test_the_index_lists_every_page(folder):
    listed = re.findall(rf"^   ({folder}/\w+)$", PAGES[folder], flags=re.MULTILINE)
    assert set(listed) == {name for name in PAGES if name.startswith(f"{folder}/")}


def test_a_section_that_is_missing_would_be_seen():
    page = PAGES["operators/kda"].replace("\nCost\n----", "")
    assert tuple(sections(page)) != operator_pages.SECTIONS


def test_the_kernel_that_breaks_a_law_is_shown_as_code_that_parses():
    for name in {*CHECKS} - {*OF_LAUNCHES}:
        text = sections(PAGES[f"checks/{name}"])["A kernel that breaks it"]
        block = text.partition(".. code-block:: python\n")[2]
        source = re.sub(r"^   ", "", block, flags=re.MULTILINE)
        assert ast.parse(source).body, name


def test_every_judged_implementation_is_on_the_page_of_its_operator():
    for entry in PUBLISHED:
        page = PAGES[f"operators/{function_of(entry.op)[0]}"]
        text = sections(page)["Published implementations"]
        assert entry.name in text
        assert operator_pages.command(entry) in text


def test_a_finding_names_the_reason_and_links_the_checks():
    entry = Entry(
        "p",
        "p.m:f",
        "kda",
        declare={"layout": "bthd"},
        expect_failure={"ranges": "adds an epsilon"},
        dtypes=("float32",),
    )
    text = operator_pages.finding(entry)
    assert "fails: it adds an epsilon" in text
    assert ":doc:`ranges </generated/checks/ranges>`" in text
    assert (
        "linkern verify p.m:f --op kda --framework torch --declare layout=bthd "
        "--dtype float32"
    ) in text


def test_the_command_line_has_the_help_of_every_command():
    titles = set(sections(PAGES["command-line"]))
    assert {"linkern", "linkern verify", "linkern list", "linkern bench"} <= titles


def test_pages_that_are_no_longer_generated_are_removed(tmp_path):
    old = tmp_path / "checks" / "old.rst"
    old.parent.mkdir()
    old.write_text("old")
    site_pages.write(tmp_path)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.rst")}
    assert old not in times
    assert len(times) == len(PAGES)
    site_pages.write(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in times} == times
