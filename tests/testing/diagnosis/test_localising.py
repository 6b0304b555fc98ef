"""Places of faults, and the maps that tell them, are held to fresh maps."""

from dataclasses import replace

import numpy as np
import pytest

from linkern.testing.diagnosis import localising, placing
from linkern.testing.diagnosis.factors.factor import Factor
from linkern.testing.diagnosis.index_sets.atoms import interval
from linkern.testing.diagnosis.index_sets.search import IndexSet
from linkern.testing.diagnosis.localising import localise
from tests.testing.diagnosis.of_oracle import dense, map_of
from tests.testing.diagnosis.test_index_sets import CAUSAL, blank, planted


def of_kind(one, kind):
    return replace(one, problem=replace(one.problem, kind=kind))


def test_clear_errors_of_another_kind_of_inputs_tell_more_than_slight_ones():
    slight = of_kind(blank(59), "normal")
    error = 1.5 * slight.bound * (np.arange(slight.exact.size) == 500)
    slight = replace(slight, measured=slight.exact + error)
    assert slight.wrong.sum() == 1
    clear = of_kind(blank(37), "tiny")
    clear = planted(clear, CAUSAL(clear.coordinates), factor=3)
    finding = localise([slight, clear], lambda: [slight, clear])
    assert (finding.place.text, finding.factor.text) == ("everywhere", "3")


def test_no_view_hides_that_results_are_not_finite(monkeypatch):
    broken, finite = of_kind(blank(59), "large"), blank(37)
    random = np.random.default_rng(0).random(broken.exact.size) < 0.1
    broken = replace(broken, measured=np.where(random, np.nan, broken.measured))
    finite = planted(finite, CAUSAL(finite.coordinates))
    monkeypatch.setattr(localising, "_views", lambda _: [(lambda _: finite, True)])
    assert localise([broken], lambda: [broken]).broken


def partly_wrong(share, seed):
    """Return a map in which a share of the rows from 16 on is wrong by any factor."""
    one = map_of(dense("gla", seed))
    rng = np.random.default_rng(seed)
    size = one.exact.shape
    chosen = (one.coordinates["row"] >= 16) & (rng.random(size) < share)
    factor = np.where(chosen, rng.uniform(2, 3, size), 1.0)
    return replace(one, measured=one.measured * factor)


@pytest.mark.parametrize(("share", "text"), [(0.9, True), (0.6, True), (0.3, False)])
def test_most_entries_of_a_place_are_wrong(share, text):
    finding = localise([partly_wrong(share, 1)], lambda: [partly_wrong(share, 2)])
    assert finding.factor is None
    if not text:
        assert finding.place is None
    else:
        assert finding.place.text == "rows from 16 on"
        assert abs(finding.place.spared - (1 - share)) < 0.03
    assert finding.cost > 40


def test_exact_words_are_shorter_than_wrong_ones_that_are_few():
    """Of two views, that is said whose place fits, though it has a number more."""
    row, everywhere = partly_wrong(1.0, 1), blank(59)
    random = np.random.default_rng(0).random(everywhere.exact.size)
    wrong = CAUSAL(everywhere.coordinates) & (random > 0.2)
    everywhere = replace(
        everywhere,
        measured=np.where(wrong, (2 + random) * everywhere.exact, everywhere.exact),
    )
    finding = localising._finding([everywhere], [everywhere])
    assert finding.place.text == "everywhere"
    assert finding.place.spared > 0.1
    assert localise([row], lambda: [row]).cost < finding.cost


def test_a_place_that_fresh_maps_contradict_is_not_said():
    def at(row, seed):
        one = map_of(dense("gla", seed))
        chosen = one.coordinates["row"] == row
        return replace(one, measured=np.where(chosen, 3 * one.exact, one.measured))

    same = localise([at(9, 1)], lambda: [at(9, 2)])
    assert (same.place.text, same.factor.text) == ("row 9", "3")
    other = localise([at(9, 1)], lambda: [at(23, 2)])
    assert other.place is None
    assert other.factor.text == "3"


def test_what_a_place_leaves_out_is_a_second_place():
    def cut(seed):
        one = map_of(dense("gla", seed))
        row, source = (one.coordinates[name] for name in ("row", "source"))
        wrong = (row - source >= 1) | (row >= 36)
        rng = np.random.default_rng(seed)
        factor = np.where(wrong, rng.uniform(2, 3, row.size), 1.0)
        return replace(one, measured=one.measured * factor)

    place = localise([cut(1)], lambda: [cut(2)]).place
    assert place.text == "sources 1 back or more, or the last 4 rows"
    assert place.missed == 0
    assert place.cost > sum(atom.cost for atom in place.atoms)


def test_two_places_of_different_factors_are_both_said():
    def late(seed):
        one = map_of(dense("gla", seed))
        row, source = (one.coordinates[name] for name in ("row", "source"))
        first = (source % 16 == 0) & (row >= 16)
        across = row // 16 > source // 16
        factor = np.where(across, 3.0, np.where(first, 2.0, 1.0))
        return replace(one, measured=one.measured * factor)

    place = localise([late(1)], lambda: [late(2)]).place
    across = "pairs across edges of chunks of 16"
    firsts = "rows from 16 on and the first source of every chunk of 16"
    assert place.text == f"{across}, or {firsts}"
    assert (place.missed, place.spared) == (0, 0)


def test_many_statements_that_most_entries_contradict_are_no_place(monkeypatch):
    def vague(maps, quantities=None, **options):
        return IndexSet(atoms, missed=0.0, spared=0.4)

    one = partly_wrong(0.6, 1)
    row = interval("row", ">=", 16)
    monkeypatch.setattr(placing, "describe", vague)
    monkeypatch.setattr(placing, "misfit", lambda *_: (0.0, 0.4))
    atoms = (row,)
    assert localising._finding([one], [one]).place is not None
    atoms = (row, interval("source", "<", 40))
    assert localising._finding([one], [one]).place is None


@pytest.mark.parametrize(("op", "told"), [("gla", True), ("delta_rule", False)])
def test_a_formula_in_place_of_weights_that_erase_is_one_of_sums_too(op, told):
    """Where tokens erase, what holds of products may not hold of sums."""
    right = map_of(dense(op))
    other = replace(right, measured=2 * right.measured)
    seven = Factor("instead", 7.0, {}, "7")
    assert localising._says_all(seven, [other]) == told
    twice = Factor("product", 2.0, {}, "2")
    assert localising._says_all(twice, [other])


def test_sizes_of_calls_are_no_place_if_a_factor_explains_the_right_ones():
    sizes = IndexSet((interval("length", ">=", 2),))
    assert placing.from_call_size_on(sizes)
    assert not placing.from_call_size_on(IndexSet())
    assert not placing.from_call_size_on(IndexSet((interval("row", ">=", 2),)))
    half = Factor("product", 0.5, {}, "1/2")
    maps = [replace(x, measured=x.measured / 2) for x in (blank(37), blank(59))]
    place = placing.place_of_affected(sizes, half, maps, maps)
    assert place.text == "everywhere"


def test_sizes_of_a_problem_are_no_thresholds():
    numbers = placing._numbers(blank(37))
    assert "query[row]" in numbers
    assert not {*placing.CONSTANTS} & numbers.keys()
