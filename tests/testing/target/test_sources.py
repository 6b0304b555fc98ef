"""Sources of targets: their file, their line and what they import from beside it."""

import pytest

from linkern.testing.target.sources import file_of, line_of, local_imports

KERNEL = """import helper
from numpy import array
from . import nothing

def plain(query, key, value):
    return value

class Layer:
    def forward(self, query, key, value):
        return value

layer = Layer()
typed: object = plain
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "ops.py").write_text(KERNEL)
    (tmp_path / "kernel.py").write_text(KERNEL)
    (tmp_path / "helper.py").write_text("import deeper, package, kernel\n")
    (tmp_path / "deeper.py").write_text("import math\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("attribute", "line"),
    [
        ("plain", 5),
        ("Layer.forward", 9),
        ("layer.forward", 12),
        ("typed", 13),
        ("absent", None),
    ],
)
def test_lines(folder, attribute, line):
    assert line_of(f"kernel.py:{attribute}") == line
    assert line_of(f"package.ops:{attribute}") == line


def test_files(folder):
    assert file_of("kernel.py:plain").samefile(folder / "kernel.py")
    assert file_of("package.ops:plain").samefile(folder / "package" / "ops.py")
    assert file_of("linkern.operators.gated:gla").name == "gated.py"
    assert file_of("math:sqrt") is None
    assert file_of("absent.py:f") is None
    assert file_of("absent.module:f") is None


def test_what_lies_beside_a_file_is_named(folder):
    files, packages = local_imports(folder / "kernel.py")
    assert [path.name for path in files] == ["helper.py", "deeper.py"]
    assert packages == ["package"]


def test_a_file_that_cannot_be_read_as_python_has_no_line(folder):
    (folder / "kernel.py").write_text("def broken(:\n")
    assert line_of("kernel.py:broken") is None
    assert local_imports(folder / "kernel.py") == ([], [])
