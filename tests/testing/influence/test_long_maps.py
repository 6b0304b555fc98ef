"""Maps of long sequences: edges are found to the token."""

import numpy as np
import pytest

from linkern.testing.influence.long_maps import LONG
from linkern.testing.kernels.correct import CORRECT
from tests.testing.influence.test_forward import asked, known, wrong_places


def measured(target, scope):
    return LONG[0].measure(target, scope, np.random.default_rng(0))


def gated(change):
    """Return simple gated linear attention of changed values, with changed rows."""
    kernel = CORRECT["simple_gla by tokens"].kernel

    def changed(query, key, value, log_decay=None):
        held, rows = change(value)
        return rows * kernel(query, key, held, log_decay)[0]

    return changed


def test_correct_kernels_have_no_wrong_entry():
    maps = measured(*known("simple_gla by tokens"))
    assert len(maps) == 2
    assert maps[1].problem.length > 4096
    assert not any(one.wrong.any() for one in maps)


def test_the_first_wrong_row_is_exact():
    def from_row(value):
        rows = np.ones((value.shape[-2], 1), value.dtype)
        rows[2345:] = 2
        return value, rows

    target, scope = asked(gated(from_row), "simple_gla")
    maps = measured(target, scope)
    rows = [places["row"].min() for _, places in wrong_places(maps)]
    assert min(rows) == 2345
    assert {one.problem.length for one in maps} >= {2345, 2346}


def test_the_shortest_length_at_which_the_last_row_is_wrong_is_exact():
    def last(value):
        rows = np.ones((value.shape[-2], 1), value.dtype)
        rows[-1] += value.shape[-2] > 400
        return value, rows

    maps = measured(*asked(gated(last), "simple_gla"))
    wrong = {one.problem.length for one in maps if one.wrong.any()}
    right = {one.problem.length for one in maps} - wrong
    assert (max(right), min(wrong)) == (400, 401)


@pytest.mark.slow
def test_the_first_wrong_source_is_exact():
    def from_source(value):
        held = value.copy()
        held[..., 1500:, :] = 0
        return held, 1

    target, scope = asked(gated(from_source), "simple_gla")
    maps = measured(target, scope)
    sources = [places["source"].min() for _, places in wrong_places(maps)]
    assert min(sources) == 1500
    right = np.concatenate([one.coordinates["source"][~one.wrong] for one in maps])
    assert 1499 in right


@pytest.mark.slow
@pytest.mark.parametrize("name", ["slots_of_512_tokens", "decays_start_again_at_256"])
def test_known_defects_of_long_sequences_show(name):
    assert any(one.wrong.any() for one in measured(*known(name)))
