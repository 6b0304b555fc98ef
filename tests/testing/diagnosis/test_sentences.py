"""Sentences: the words of each kind of factor, and the usual lines."""

import re
from dataclasses import replace

import numpy as np
import pytest

from linkern.testing.diagnosis.factors.factor import Factor
from linkern.testing.diagnosis.index_sets.describe import describe
from linkern.testing.diagnosis.index_sets.search import IndexSet
from linkern.testing.diagnosis.sentences import (
    _rules,
    hint,
    localised,
    name_of,
    sentence,
)
from tests.testing.diagnosis.test_pictures import a_map, lost_across

EDGES = "pairs across edges of chunks of 16"
NOWHERE = "places that no short description covers"
SUM = "sum of log_decay over the chunk before"


@pytest.mark.parametrize(
    ("where", "by_what", "kind", "expected"),
    [
        (EDGES, "0", "product", f"the output lacks {EDGES}"),
        ("the diagonal", "2", "product", "the output counts the diagonal twice"),
        (EDGES, "-1", "product", f"the output has the other sign in {EDGES}"),
        ("everywhere", "0", "product", "the output is 0 everywhere"),
        (
            "everywhere",
            "1 / scale",
            "product",
            "the output lacks the factor `scale` everywhere",
        ),
        (
            EDGES,
            "beta[row]",
            "product",
            f"the output is multiplied by `beta[row]` in {EDGES}",
        ),
        (
            EDGES,
            f"exp(-{SUM})",
            "product",
            f"the output lacks the factor `exp({SUM})` in {EDGES}",
        ),
        (
            "where key is below 1",
            "1e-3 / key",
            "clamp",
            "the output is multiplied by `1e-3 / key` where key is below 1",
        ),
        (
            EDGES,
            "plus value[source]",
            "added",
            f"the output has `value[source]` added in {EDGES}",
        ),
        (
            "heads from 1 on",
            "that of head 0",
            "moved",
            "the output is that of head 0 in heads from 1 on",
        ),
        (EDGES, "", "", f"the output is wrong in {EDGES}"),
        (
            "",
            "2",
            "product",
            f"the output is twice as large as it should be in {NOWHERE}",
        ),
    ],
)
def test_sentences(where, by_what, kind, expected):
    assert sentence("output", where, by_what, kind) == expected


def test_a_place_and_a_factor_make_a_diagnosis():
    maps = [a_map(40, lost_across), a_map(64, lost_across)]
    place = describe(maps)
    made = localised(maps, place, Factor("product", 0.0, {}, "0"))
    assert made.sentence == f"the output lacks {EDGES}; seen first at T=17"
    assert (made.name, made.stage) == ("output_lost", "output")
    assert (made.where, made.by_what, made.ratio) == (EDGES, "0", 0.0)
    assert made.picture.chunk == 16
    assert len(made.picture.rows) == 64
    assert "carried" in made.hint


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (EDGES, True),
        ("the last source of every chunk of 16", True),
        ("the last source", False),
        ("the last 3 rows", False),
        ("sources in the tail of chunks of 16", False),
        ("rows in the last chunk of 16", False),
        ("lengths that are no multiple of 16", False),
    ],
)
def test_a_place_at_the_end_of_a_call_has_no_first_length(words, told):
    maps = [a_map(40, lost_across), a_map(64, lost_across)]
    atom = replace(describe(maps).atoms[0], text=words)
    made = localised(maps, IndexSet((atom,)), Factor("product", 0.0, {}, "0"))
    assert ("seen first at T=17" in made.sentence) == told


def test_what_is_all_zero_is_lost_though_no_formula_was_found():
    maps = [a_map(40, lost_across), a_map(64, lost_across)]
    made = localised(maps, describe(maps), None)
    assert made.sentence == f"the output lacks {EDGES}; seen first at T=17"
    declared = localised(maps, describe(maps), None, declaration=("scale=2",))
    assert "right if `scale=2` is declared" in declared.sentence


def test_what_follows_no_formula_is_shown_as_numbers():
    maps = [a_map(40, lambda row, source, exact: exact * (1 + row % 7))]
    made = localised(maps, IndexSet(missed=0.25, spared=0.5), None)
    numbers = "unlike any product that was tried: ratios 2 to 7"
    assert made.by_what == numbers
    assert made.sentence == (
        f"the output is wrong in most places; {numbers}; 25% of what is wrong lies "
        "elsewhere; 50% of all are right; seen first at T=2"
    )
    assert made.name == "output_wrong"
    assert np.isnan(made.ratio)
    declared = localised(
        maps,
        IndexSet(missed=0.25, alternatives=("row 1",)),
        None,
        declaration=("layout=bthd",),
    )
    assert declared.alternatives == ()
    assert declared.sentence == (
        "the output is wrong everywhere; right if `layout=bthd` is declared; "
        "seen first at T=2"
    )
    nowhere = localised(maps, None, None, declaration=("normalize=false", "scale=2"))
    assert nowhere.where == ""
    assert nowhere.sentence == (
        f"the output is wrong in {NOWHERE}; "
        "right if `normalize=false scale=2` is declared; seen first at T=2"
    )


def test_names_are_words_for_programs():
    for by_what in (
        "0",
        "2",
        "-1",
        "scale",
        "",
    ):
        assert re.fullmatch("[a-z_]+", name_of("gradient of key", by_what))


def test_every_rule_compiles_and_none_repeats_another():
    rules = _rules()
    assert len(rules) >= 25
    keys = [tuple((n, rule[n]) for n in sorted(rule) if n != "line") for rule in rules]
    assert len({*keys}) == len(rules)
    for rule in rules:
        assert {*rule} <= {"stage", "where", "by_what", "line"}
        for name in {*rule} - {"line"}:
            re.compile(rule[name])


@pytest.mark.parametrize(
    ("stage", "where", "by_what", "word"),
    [
        ("output", "sources ahead of the row", "", "mask"),
        ("output", EDGES, "0", "carried"),
        ("output", "pairs of neighbouring chunks of 16", "0", "overwritten"),
        ("output", "key channels from 128 on", "0", "tile"),
        ("output", "sources 64 back or more", "0", "window"),
        ("gradient of log_decay", "everywhere", "0", "reversed cumulative sum"),
        ("output", "everywhere", "K^-0.5", "scale"),
        ("output", "everywhere", "denominator / (denominator + 1e-6)", "epsilon"),
        ("output", "everywhere", "1 / (4 * scale)", "padded"),
        ("output", "spans from 1 on", "a state read as (V, K)", "initial state"),
        (
            "output",
            "rows from 1 on",
            "channels padded with zeros, whose features count, to a multiple of 16",
            "mask of a tile",
        ),
        ("output", "everywhere", "denominator / denominator[row - 1]", "other tokens"),
        (
            "output",
            EDGES,
            "exp(-sum of log_decay over the chunk up to the row)",
            "reads",
        ),
        ("output", EDGES, "exp(-log_decay[source])", "added to the state"),
        ("output", "heads from 1 on", "that of head 0", "index of a head"),
        (
            "final state",
            "everywhere",
            "key channel and value channel exchanged",
            "(V, K)",
        ),
        ("gradient of key across sequences", "everywhere", "0", "packed"),
    ],
)
def test_usual_lines(stage, where, by_what, word):
    assert word in hint(stage, where, by_what)
    assert hint("output", "nowhere", "nothing") == ""
