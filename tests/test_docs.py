"""Every example in the documentation and in the docstrings is executed."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import architecture
import pytest
from click.testing import CliRunner

import linkern
from linkern.cli import main
from tests.conftest import modules

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MODULES = modules()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_examples_of_pages(page):
    result = doctest.testfile(str(page), module_relative=False)
    assert result.failed == 0
    assert result.attempted or page.name != "README.md"


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings(name):
    module = importlib.import_module(name)
    assert doctest.testmod(module).failed == 0
    if name in ("linkern.feature_maps", "linkern.state"):
        assert doctest.testmod(module).attempted >= 3
    public = set(getattr(module, "__all__", ())) & set(linkern.__all__)
    if name.startswith("linkern.operators.") and public:
        assert doctest.testmod(module).attempted >= 3


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_between_files_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", ["architecture", "modules"])
def test_the_architecture_is_generated_from_the_code(page):
    written = (ROOT / "docs" / f"{page}.md").read_text()
    assert written == getattr(architecture, page)()
    rows = [line for line in written.splitlines() if line.startswith("| `")]
    assert len(rows) == len(set(rows))


def test_the_architecture_follows_the_contract(monkeypatch):
    """A layer that moves in the contract moves in the picture, and is seen to."""
    layers = architecture.layers()
    assert {name for layer in layers for name in layer} == {
        module.name for module in pkgutil.iter_modules(linkern.__path__)
    }
    monkeypatch.setattr(architecture, "layers", lambda: layers[::-1])
    assert architecture.picture() not in (ROOT / "docs" / "architecture.md").read_text()


def test_the_failure_shown_in_the_readme_is_what_the_command_prints(monkeypatch):
    block = (ROOT / "README.md").read_text().partition("```text\n$ linkern ")[2]
    command, *shown = block.partition("```")[0].splitlines()
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(main, command.split())
    assert result.exit_code == 1
    printed = result.output.splitlines()
    for line in shown:
        start = line.removesuffix("...").rstrip()
        assert any(row.startswith(start) for row in printed), line
