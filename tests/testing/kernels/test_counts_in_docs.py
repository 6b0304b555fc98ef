"""Counts of checks, operators and kernels in the docs are those of the catalogues."""

import re
from pathlib import Path

import pytest

from linkern.testing import CHECKS, OPERATORS
from linkern.testing.kernels.correct import CORRECT
from linkern.testing.kernels.mutants import MUTANTS
from linkern.testing.runner.canaries import CANARIES, PASSING
from tests.testing.linear_kernels import CORRECT as LINEAR_CORRECT
from tests.testing.linear_kernels import FAULTY

DOCS = Path(__file__).parents[3] / "docs"
WORDS = {2: "two", 6: "six", 7: "seven", 8: "eight"}


def operators(catalogue):
    return len({kernel.op for kernel in catalogue.values()})


def text(page):
    return " ".join((DOCS / f"{page}.md").read_text(encoding="utf-8").split())


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("findings", f"today there are {len(CHECKS)} checks"),
        ("findings", f"checks for {len(OPERATORS)} operators."),
        ("findings", f"{len(FAULTY)} with one planted defect each"),
        ("findings", f"{len(LINEAR_CORRECT)} with none."),
        ("findings", f"{len(MUTANTS)} mutants of {operators(MUTANTS)} operators"),
        ("findings", f"{len(CORRECT)} correct kernels of {operators(CORRECT)};"),
        ("side-by-side", f"the {len(FAULTY)} kernels of linear attention"),
        ("side-by-side", f"and the {len(LINEAR_CORRECT)} in"),
        ("referee", f"{WORDS[len(CANARIES)]} planted defects must be caught"),
        ("referee", f"{WORDS[len(PASSING)]} correct kernels passed"),
    ],
)
def test_counts_are_those_of_the_code(page, sentence):
    assert sentence in text(page)


def rows(page):
    """Return the rows of the tables of a page, by their first cell."""
    lines = (DOCS / f"{page}.md").read_text(encoding="utf-8").splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return {first.strip("*`"): rest for first, *rest in cells}


def test_every_kernel_is_on_the_page_that_compares_rules():
    assert {*FAULTY} <= {*rows("side-by-side")}


def test_findings_quote_the_page_that_compares_rules():
    """Compare the first number of each cell, judge by judge."""
    page, names = rows("side-by-side"), {"torch.testing.assert_close": "torch"}
    names |= {"FLA's ratio": "FLA", "FLA's ratio in its CI": "FLA in CI"}
    names |= {"FlashAttention's 2x": "FlashAttention", "gpucheck 0.1.0": "gpucheck"}
    judges = ["linkern", "allclose 1e-2", "allclose 1e-3", "allclose 1e-4", "torch"]
    judges += ["FLA", "FLA in CI", "FlashAttention", "gpucheck"]
    titles = [
        f"{dtype}: {row}"
        for row in ("mutants caught", "correct kernels rejected")
        for dtype in ("float32", "bfloat16")
    ]
    quoted = {}
    for name, cells in rows("findings").items():
        judge = name.replace("`", "")
        judge = names.get(judge, judge)
        if judge in judges and len(cells) == len(titles):
            quoted[judge] = [int(re.match(r"\d+", cell).group()) for cell in cells]
    assert quoted == {
        judge: [int(page[title][i].split()[0]) for title in titles]
        for i, judge in enumerate(judges)
    }
