"""The page of the kill matrix is about these mutants, and follows from its rows."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from linkern.testing.checks import SMOKE
from linkern.testing.kernels.mutants import MUTANTS


@pytest.fixture
def matrix():
    path = Path(__file__).parents[3] / "tools" / "kill_matrix.py"
    spec = spec_from_file_location("kill_matrix", path)
    tool = module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def catching_all_but(matrix, *survivors):
    """In place of running the mutants: all are caught as the page says, but some."""

    def caught_by(name, checks, seed=0):
        return [] if name in survivors else [*checks]

    def run(selection):
        return {name: caught_by(name, checks) for name, checks in selection.items()}

    matrix._run, matrix.caught_by = run, caught_by
    page = matrix.PAGE.read_text(encoding="utf-8")
    matrix.descriptions = lambda _: matrix.claimed_descriptions(page)
    return matrix


def test_the_page_follows_from_its_rows(matrix, capsys):
    page = matrix.PAGE.read_text(encoding="utf-8")
    assert catching_all_but(matrix).differences(page) == []
    assert not capsys.readouterr().err


def test_the_first_laws_catch_most_mutants(matrix):
    caught = matrix.claimed(matrix.PAGE.read_text(encoding="utf-8"))
    first = set(SMOKE)
    early = [n for n, m in MUTANTS.items() if first & {*caught[n], m.checks[0]}]
    assert len(early) / len(MUTANTS) > 4 / 5


def count(*, linear):
    mutants = [m for m in MUTANTS.values() if (m.op == "linear_attention") == linear]
    return f"{len(mutants)} of {len(mutants)}"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("| `heads_mixed` |", "| `heads_swapped` |"),
        ("| `never_erases` |", "| `never_writes` |"),
        ("| `never_erases` | kda |", "| `never_erases` | gla |"),
        (f"| {count(linear=True)} |", "| some |"),
        (f"| {count(linear=False)} |", "| some |"),
        ("**nan_policy** alone", "**nan** alone"),
        ("| causality | ", "| casualty | "),
        ("fla #594", "fla #595"),
    ],
)
def test_a_page_about_something_else_is_refused(matrix, old, new):
    page = matrix.PAGE.read_text(encoding="utf-8")
    assert old in page
    (wrong, *_) = catching_all_but(matrix).differences(page.replace(old, new))
    assert "about other mutants or checks" in wrong


@pytest.mark.parametrize("name", ["heads_mixed", "exp_before_mask"])
def test_a_mutant_that_survives_is_named(matrix, name, capsys):
    page = matrix.PAGE.read_text(encoding="utf-8")
    assert catching_all_but(matrix, name).differences(page) == [f"survived: {name}"]
    assert f"{name}: here not caught by" in capsys.readouterr().err


def test_a_mutant_that_one_seed_misses_has_not_survived(matrix, capsys):
    page = matrix.PAGE.read_text(encoding="utf-8")
    catching_all_but(matrix, "heads_mixed")
    matrix.caught_by = lambda name, checks, seed: [*checks] if seed == 2 else []
    assert matrix.differences(page) == []
    assert "heads_mixed: here not caught by" in capsys.readouterr().err


def test_a_diagnosis_that_is_right_on_the_page_only_is_named(matrix):
    page, name = matrix.PAGE.read_text(encoding="utf-8"), "heads_mixed"
    catching_all_but(matrix)
    told, asked = matrix.claimed_descriptions(page), []
    right, wrong = ("head 1", "that of head 0"), ("wrong: head 0", "that of head 0")
    page = matrix.page(matrix.claimed(page), told | {name: right})
    matrix.descriptions = lambda names: asked.extend(names) or {name: wrong}
    assert matrix.differences(page) == [f"{name}: here described by {wrong}"]
    matrix.descriptions = lambda _: {name: right}
    assert matrix.differences(page) == []
    assert len(MUTANTS) / 10 < len(asked) < len(MUTANTS) / 6


@pytest.mark.parametrize("option", [["--diagnoses"], []])
def test_the_page_is_written(matrix, option, tmp_path, monkeypatch):
    page = matrix.PAGE.read_text(encoding="utf-8")
    catching_all_but(matrix)
    asked = []
    told = matrix.claimed_descriptions(page) | {"heads_mixed": ("head 1", "—")}
    matrix.descriptions = lambda names: asked.extend(names) or told
    matrix.measured = lambda: matrix.claimed(page)
    matrix.PAGE = tmp_path / "page.md"
    matrix.PAGE.write_text(page, encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["kill_matrix.py", *option])
    assert matrix.main() == 0
    written = matrix.PAGE.read_text(encoding="utf-8")
    assert matrix.claimed_descriptions(written) == told
    assert asked == [*MUTANTS]
