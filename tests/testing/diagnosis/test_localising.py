"""Maps that tell a fault: clear errors before slight ones, finite views of none."""

from dataclasses import replace

import numpy as np

from linkern.testing.diagnosis import localising
from linkern.testing.diagnosis.localising import localise
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
