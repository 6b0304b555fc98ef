"""Counts of kernels in the docs are those of the catalogues."""

from pathlib import Path

import pytest

from linkern.testing.kernels.mutants import MUTANTS
from linkern.testing.runner.canaries import CANARIES, PASSING
from tests.testing.linear_kernels import CORRECT, FAULTY

DOCS = Path(__file__).parents[3] / "docs"
WORDS = {1: "one", 2: "two", 3: "three", 6: "six", 7: "seven", 8: "eight"}
# Faulty kernels of linear attention that are wrong in float32, too.
IN_FLOAT32 = [n for n in FAULTY if "float32" not in MUTANTS[n].harmless_in]
ROWS = ("mutants caught", "correct kernels rejected")


def text(page):
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("page", "phrase"),
    [
        ("side-by-side", f"the {len(IN_FLOAT32)} kernels of linear attention in"),
        ("side-by-side", f"and the {len(CORRECT)} in"),
        ("referee", f"{WORDS[len(CANARIES)]} planted defects must be caught"),
        ("referee", f"{WORDS[len(PASSING)]} correct kernels passed"),
    ],
)
def test_counts_are_those_of_the_code(page, phrase):
    assert phrase in " ".join(text(page).split())


def rows(start):
    """Return the rows of the page that compares rules, by their first cell."""
    lines = [x for x in text("side-by-side").splitlines() if x.startswith(start)]
    cells = [line.strip("| ").split(" | ") for line in lines]
    return [(first.strip("*`"), rest) for first, *rest in cells]


def test_the_page_that_compares_rules_has_every_mutant_in_each_dtype():
    names = [name for name, _ in rows("| `")]
    tables = (("float32", True), ("bfloat16", True), ("float32", False))
    assert sorted(names) == sorted(
        name
        for dtype, linear in tables
        for name, mutant in MUTANTS.items()
        if (name in FAULTY) is linear and dtype not in mutant.harmless_in
    )


def test_findings_say_what_that_page_says():
    table = dict(rows("| **float32: "))
    cells = zip(*(table[f"float32: {row}"] for row in ROWS), strict=True)
    (linkern, _), *rules = (
        (int(caught.split()[0]), rejected)
        for caught, rejected in cells
        if caught != "not installed"
    )
    assert linkern == len(IN_FLOAT32)
    assert "In float32 linkern catches all defects" in text("findings")
    sound = f"0 of {len(CORRECT)}"
    best = max(caught for caught, rejected in rules if rejected == sound)
    assert best < 2 / 3 * len(IN_FLOAT32)
    assert "no rule that accepts all correct kernels catches two thirds" in " ".join(
        text("findings").split()
    )
