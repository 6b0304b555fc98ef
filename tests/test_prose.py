"""The prose rule of CONTRIBUTING, as far as a program can hold the code to it."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted([*(ROOT / "linkern").rglob("*.py"), *(ROOT / "tools").glob("*.py")])
CUDA = sorted((ROOT / "linkern").rglob("*.cu*"))
# A docstring says what a thing is or does; a clause says it of something else.
CLAUSE = re.compile(r"(What|Whether|How|Which|Where|Those|Who)\b")
# Names that hold nothing by themselves.
EMPTY_PARAMETERS = {"of", "the"}
EMPTY_RESULTS = {"found", "given", "due"}
# The name of a struct, behind its alignment; a specialisation is no second type.
DEFINED = re.compile(
    r"\bstruct (?:\w+\([^)]*(?:\([^)]*\))?[^)]*\) )?(\w+)(?![\w<])[^;{}]*{"
)


def violations(text):
    """Return what a module's docstrings and names do against the rule."""
    lines = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef):
            doc = ast.get_docstring(node) or ""
            if CLAUSE.match(doc) or re.search(r"\bfamily\b", doc, re.IGNORECASE):
                lines.append(doc.splitlines()[0])
        elif isinstance(node, ast.arg) and node.arg in EMPTY_PARAMETERS:
            lines.append(f"parameter {node.arg}, line {node.lineno}")
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            lines += [f"name {node.id}, line {node.lineno}"] * (
                node.id in EMPTY_RESULTS
            )
    return lines


def test_docstrings_and_names_say_what_things_are():
    by_file = {
        str(path.relative_to(ROOT)): violations(path.read_text(encoding="utf-8"))
        for path in SOURCES
    }
    assert {path: lines for path, lines in by_file.items() if lines} == {}
    assert len(by_file) > 300


@pytest.mark.parametrize(
    "text",
    [
        '"""What is computed, for those who ask."""',
        'def f():\n    """Whether it fits."""',
        'class F:\n    """An operator of the family."""',
        "def f(of): ...",
        "f = lambda the: the",
        "found = 1",
        "for due in (): ...",
    ],
)
def test_each_kind_of_violation_is_seen(text):
    assert len(violations(text)) == 1


def test_in_cuda_no_type_is_defined_twice():
    places = {}
    for path in CUDA:
        for name in DEFINED.findall(path.read_text(encoding="utf-8")):
            places.setdefault(name, []).append(path.name)
    assert {name: files for name, files in places.items() if len(files) > 1} == {}
    assert len(places) > 20
