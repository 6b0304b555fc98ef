"""Facts of a release that stand in several files agree."""

import re
import tomllib
from pathlib import Path

import pytest

from linkern import __version__

ROOT = Path(__file__).parents[1]
FILES = {
    name: (ROOT / name).read_text(encoding="utf-8")
    for name in ("CHANGELOG.md", "CITATION.cff", "pyproject.toml")
}


def disagreements(files):
    """Return what differs from the version and from the oldest Python."""
    heading = rf"## {re.escape(__version__)} \((unreleased|\d{{4}}-\d\d-\d\d)\)"
    first = re.search("^## .*$", files["CHANGELOG.md"], re.MULTILINE)
    cited = re.search("^version: (.*)$", files["CITATION.cff"], re.MULTILINE)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    pythons = re.findall(r"Python :: 3\.(\d+)", " ".join(project["classifiers"]))
    return [
        name
        for name, agrees in (
            ("changelog", first and re.fullmatch(heading, first[0])),
            ("citation", cited and cited[1] == __version__),
            ("python", f">=3.{min(map(int, pythons))}" == project["requires-python"]),
            ("license", f"license: {project['license']}" in files["CITATION.cff"]),
        )
        if not agrees
    ]


def test_the_files_of_a_release_agree():
    assert disagreements(FILES) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        ("CHANGELOG.md", f"## {__version__} (", "## 99.0.0 (", "changelog"),
        (
            "CHANGELOG.md",
            f"## {__version__} (",
            f"## {__version__} (soon ",
            "changelog",
        ),
        ("CITATION.cff", f"version: {__version__}", "version: 99.0.0", "citation"),
        ("CITATION.cff", "license: BSD", "license: MIT", "license"),
        ("pyproject.toml", 'python = ">=3.11"', 'python = ">=3.10"', "python"),
    ],
)
def test_a_file_that_disagrees_is_named(file, old, new, named):
    assert old in FILES[file]
    assert disagreements({**FILES, file: FILES[file].replace(old, new)}) == [named]
