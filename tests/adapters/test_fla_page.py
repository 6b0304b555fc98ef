"""The page for users of flash-linear-attention is true of catalogue and operators."""

import inspect
import re
from pathlib import Path

import pytest

import linkern
from linkern.adapters.fla_entries import FLA
from linkern.operators.register import DEFINITIONS
from linkern.validate.keywords import keywords

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "coming-from-flash-linear-attention.md").read_text()
TABLE = PAGE.partition("## Functions and their inputs")[2].partition("\n- ")[0]
ROWS = [
    [cell.strip(" `") for cell in line.strip("|").split("|")]
    for line in TABLE.splitlines()
    if line.startswith("| `") and "linkern" not in line
]
OPTIONS = PAGE.partition("## Options")[2].partition("\n\nPacked")[0]


def parameters(name):
    return inspect.signature(getattr(linkern, name)).parameters


def answer(keyword, name):
    with pytest.raises(TypeError) as caught:
        keywords(name, [keyword], parameters(name))
    return str(caught.value)


def test_every_function_that_is_judged_is_on_the_page():
    rows = {(folder, name) for folder, name, *_ in ROWS}
    for entry in FLA:
        folder = re.match(r"fla\.ops\.(.+)\.\w+:", entry.name)[1]
        # RWKV-7 is judged through what the package reduces it to.
        assert (folder, entry.op) in rows or entry.op == "rwkv7"


# What that package has no function of.
PUBLISHED_ELSEWHERE = {
    *("mamba3", "mamba3_mimo", "mlstm", "power_retention", "selective_scan"),
}


def test_every_operator_is_on_the_page():
    """All but RWKV-7, which takes what the model has, and not what kernels take."""
    there = DEFINITIONS.keys() - PUBLISHED_ELSEWHERE
    assert {name for _, name, *_ in ROWS} == there - {"rwkv7"}


def is_true(row):
    _, name, theirs, ours, _, scale = row
    definition = DEFINITIONS[name]
    assert set(definition.required) <= set(ours.split()) <= parameters(name).keys()
    for other, own in zip(theirs.split(), ours.split(), strict=True):
        if other != own:
            assert other not in parameters(name)
            assert f"did you mean `{own}`" in answer(other, name)
    if "query" not in definition.axes:
        assert scale == "none"
    else:
        assert scale == ("K^-0.5" if definition.inverse_root_scale else "1")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_is_true(row):
    is_true(row)


@pytest.mark.parametrize(
    "change",
    [
        {2: "q k v beta g"},  # in another order than ours
        {3: "query key value log_decay"},  # one is missing
        {3: "query key value decay beta"},  # not a name of ours
        {5: "1"},
    ],
)
def test_a_row_that_is_not_true_is_refused(change):
    row = next(row for row in ROWS if row[1] == "gated_delta_rule")
    with pytest.raises((AssertionError, ValueError)):
        is_true([change.get(i, cell) for i, cell in enumerate(row)])


def test_every_option_is_taken_or_answered():
    known = parameters("gated_delta_rule")
    rows = [line.strip("| ").split(" | ") for line in OPTIONS.splitlines()[4:]]
    assert len(rows) == 9
    for there, here in rows:
        for option in re.findall(r"`(\w+)`", there):
            if here.startswith("leave it out"):
                assert "leave it out" in answer(option, "gated_delta_rule")
            else:
                assert option in known
