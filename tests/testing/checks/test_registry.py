"""The record of each check: law, defects it reaches, advice."""

import re

import pytest

from linkern.testing import CHECKS
from linkern.testing.checks import registry
from linkern.testing.spec.declarations import DECLARATIONS


def law_with(doc):
    def law(target, problem): ...

    law.__doc__ = doc
    return law


@pytest.mark.parametrize("name", CHECKS)
def test_every_check_says_what_it_reaches_and_how_to_mend_it(name):
    check = CHECKS[name]
    assert check.reaches
    assert 1 <= check.advice.count(". ") + 1 <= 4
    assert check.advice.endswith(".")
    # Declarations that are advised exist.
    for key, value in re.findall(r"`(\w+)=([^`]+)`", check.advice):
        assert key in DECLARATIONS or key == "other", key
        if key in DECLARATIONS:
            DECLARATIONS[key].values.parse(key, value)
    for _, keys in re.findall(
        r"(declare) ((?:`\w+`(?:, | and | or )?)+)", check.advice
    ):
        assert {*re.findall(r"\w+", keys)} - {"and", "or"} <= {*DECLARATIONS}


def test_paragraphs_are_read_by_their_labels():
    law = law_with("Reaches: a\n    b.\n\n    More of it.\n\n    Fix: c.\n    ")
    assert registry._paragraph(law, "Reaches:") == "a b."
    assert registry._paragraph(law, "Fix:") == "c."


@pytest.mark.parametrize("doc", [None, "Reaches: a.", "Reaches: a. Fix: b."])
def test_advice_that_is_not_a_paragraph_of_its_own_is_seen_to_be_missing(doc):
    assert registry._paragraph(law_with(doc), "Fix:") == ""


def test_every_condition_says_what_it_requires():
    needs = {name: check.needs for name, check in CHECKS.items()}
    conditional = {n for n, c in CHECKS.items() if c.unless is not registry._always}
    assert {name for name, texts in needs.items() if texts} == conditional
    promise, one_rank = needs["bad_input"]
    assert promise == "a promise to refuse bad input (`validates=true`)"
    assert one_rank == "a target on one rank"
    assert len(needs["state_drift"]) == 2  # of nested conditions, each


def test_a_condition_without_a_docstring_is_seen():
    assert registry._needs(lambda scope: None) == ()
