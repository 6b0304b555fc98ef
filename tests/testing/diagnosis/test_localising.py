"""Places of faults, and the maps that tell them, are held to fresh maps."""

from dataclasses import replace

import numpy as np
import pytest

from linkern.testing.diagnosis import localising
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


def test_sizes_of_a_problem_are_no_thresholds():
    numbers = localising._numbers(blank(37))
    assert "query[row]" in numbers
    assert not {*localising.SIZES} & numbers.keys()
