"""Sets of which a part is right are not said, whatever describes most of them."""

from dataclasses import replace

import numpy as np
import pytest

from linkern.testing.diagnosis.index_sets.atoms import interval, interval_atoms
from linkern.testing.diagnosis.index_sets.describe import (
    IndexSet,
    describe,
    is_certain,
)
from linkern.testing.diagnosis.index_sets.places import places
from linkern.testing.diagnosis.localising import localise
from linkern.testing.diagnosis.placing import shorter
from tests.testing.diagnosis.test_index_sets import CAUSAL, blank, planted
from tests.testing.diagnosis.test_localising import of_kind

# Factors that no formula of quantities is.
NO_PRODUCT = 1 + np.random.default_rng(3).uniform(0.2, 0.8, 2**16)


def wrong_in(one, chosen):
    """Return a map that is wrong at chosen places, by what is no product."""
    chosen = chosen & CAUSAL(one.coordinates)
    wrong = planted(one, chosen, NO_PRODUCT[: len(one.exact)])
    return replace(wrong, tensor="final state")


def fading(one):
    """Return the entries that are wrong: the later their sources, the fewer."""
    draw = np.random.default_rng(one.problem.length).random(len(one.exact))
    return draw < 1.1 - (one.coordinates["source"] / 40) ** 3


@pytest.mark.parametrize(("other", "certain"), [(20, True), (60, False)])
def test_a_set_of_two_statements_is_wrong_in_each_call(other, certain):
    two = interval("row", ">=", 30), interval("head", ">=", 1)
    maps = [
        wrong_in(x, IndexSet(two).contains(x) & (x.problem.length != 60))
        for x in (blank(59), blank(other))
    ]
    assert is_certain(IndexSet(two), maps) == certain
    assert is_certain(IndexSet(two[1:]), maps)


@pytest.mark.parametrize("axis", ["row", "source"])
def test_most_entries_at_the_end_of_a_range_are_wrong(axis):
    one = blank(59)
    sharp = wrong_in(one, one.coordinates[axis] < 40)
    faded = wrong_in(
        one, fading(replace(one, coordinates={"source": one.coordinates[axis]}))
    )
    known = IndexSet((interval(axis, "<", 40),))
    last = int(faded.coordinates[axis][faded.wrong].max()) + 1
    assert is_certain(known, [sharp])
    ends = interval(axis, "<", last), interval(f"left {axis}", ">=", 60 - last)
    for end in ends:
        assert not is_certain(IndexSet((end,)), [faded])


def test_of_a_range_that_fades_the_other_statements_are_left():
    one = blank(59, heads=3)
    wrong = wrong_in(one, (one.coordinates["head"] >= 1) & fading(one))
    finding = localise([wrong], lambda: [wrong])
    assert finding.factor is None
    assert finding.place.text == "heads from 1 on"
    assert 0.01 < finding.place.spared < 0.25


@pytest.mark.parametrize("usual", [True, False])
def test_what_is_right_in_usual_calls_is_no_place(usual):
    one = of_kind(blank(59), "normal")
    if usual:
        one = wrong_in(one, one.coordinates["row"] >= 0)
    other = of_kind(blank(37), "tiny")
    other = wrong_in(other, other.coordinates["row"] >= 0)
    place = localise([one, other], lambda: [one, other]).place
    assert (place and place.text) == ("everywhere" if usual else None)


def test_statements_that_fit_no_better_are_left_out():
    one = blank(59)
    random = np.random.default_rng(0).random(len(one.exact)) < 0.995
    wrong = wrong_in(one, random)
    place = IndexSet((interval("source", "<", 56),))
    assert shorter(place, [wrong]) == IndexSet(spared=pytest.approx(0.005, abs=0.002))
    exact = wrong_in(one, one.coordinates["source"] < 56)
    assert shorter(place, [exact]) == place


@pytest.mark.parametrize(("starts", "text"), [((7, 7), None), ((7, 31), "sequence 1")])
def test_heads_of_one_sequence_are_one_piece_of_evidence(starts, text):
    maps = []
    for start in starts:
        one = blank(4, heads=8, batch=1, knobs={"sequences": 4})
        sequence, head = np.divmod(np.arange(32), 8)
        known = {"sequence": sequence, "start": start + sequence, "head": head}
        one = replace(one.part(np.arange(32)), coordinates=known, exact=np.ones(32))
        one = replace(one, measured=np.ones(32), bound=np.full(32, 1e-6))
        maps.append(replace(one, measured=one.exact + (sequence == 1)))
    place = describe(maps)
    assert (place and place.text) == text


def test_one_edge_is_no_chunk_of_any_size():
    def chunk(size, length):
        one = blank(length)
        edges = one.coordinates["row"] // size - one.coordinates["source"] // size
        return describe([planted(one, CAUSAL(one.coordinates) & (edges != 0))])

    assert chunk(48, 60).chunk != 48
    assert chunk(24, 60).chunk == 24
    assert chunk(32, 60).chunk == 32


def test_the_last_head_is_a_place_in_calls_of_any_heads():
    maps = [blank(20, heads=n) for n in (2, 3, 5)]
    maps = [
        wrong_in(
            x,
            (x.coordinates["head"] >= 1)
            & (x.coordinates["head"] < x.problem.shape.heads - 1),
        )
        for x in maps
    ]
    assert describe(maps).text == "heads from 1 on and heads other than the last head"


def test_ends_of_packed_sequences_are_those_of_each():
    one = blank(20, knobs={"sequences": 3})
    last = one.coordinates["source"] == 19
    known = places(replace(one, coordinates=one.coordinates | {"sequence": last * 0}))
    texts = {atom.text for _, atom in interval_atoms(known, np.where(last, -1.0, 1.0))}
    assert "the last source of every sequence" in texts
