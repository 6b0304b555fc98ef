"""Notebooks run from top to bottom; the site executes them with a kernel, too."""

import ast
import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))


def cells(path):
    """Return the code cells of a notebook."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def displayed(source, names):
    """Execute a cell; return the value of its last line, as a notebook shows it."""
    tree = ast.parse(source)
    last = tree.body[-1]
    if not isinstance(last, ast.Expr):
        exec(compile(tree, "<cell>", "exec"), names)
        return None
    tree.body.pop()
    exec(compile(tree, "<cell>", "exec"), names)
    return eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)


@pytest.fixture(scope="module", params=NOTEBOOKS, ids=lambda path: path.stem)
def results(request):
    """The values that the cells of a notebook display."""
    names = {"__name__": "__main__"}
    return [displayed("".join(cell["source"]), names) for cell in cells(request.param)]


def test_there_are_notebooks_without_outputs():
    assert NOTEBOOKS
    for path in NOTEBOOKS:
        assert all(not cell["outputs"] for cell in cells(path))
        assert all(cell["execution_count"] is None for cell in cells(path))


def test_cells_display_what_their_text_says(results):
    shape, _, passes, _, cause, page, _, verdict = results
    assert shape == (1, 2, 40, 8)
    assert passes
    assert cause == ("output_lost", ["value_on_integers"])
    assert "value_on_integers" in page._repr_html_()
    assert verdict == "passed"


def test_a_report_is_printed_as_text_in_a_notebook(results, monkeypatch):
    report = results[5]
    text = str(report)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert str(report) == text
    assert text.startswith("failed: ")


def test_a_cell_that_raises_is_seen():
    with pytest.raises(ZeroDivisionError):
        displayed("x = 1\nx / 0", {})
