"""Pictures: each cell shows its worst entry, and cells keep to chunks."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from linkern.testing.diagnosis.pictures import CELLS, picture
from linkern.testing.influence.maps import InfluenceMap
from linkern.testing.problems.context import Shape


def a_map(length, changed=lambda row, source, exact: exact, heads=1, **coordinates):
    """Return a map of causal weights of 1/2, with those that `changed` replaces."""
    head, row, source = (x.ravel() for x in np.indices((heads, length, length)))
    exact = np.where(row >= source, 0.5, 0.0)
    measured = np.where(head == heads - 1, changed(row, source, exact), exact)
    bound = np.full(exact.shape, 1e-6)
    places = {"row": row, "source": source, "head": head} | coordinates
    shape = Shape(1, 1, length, length, 1, 1)
    scope = SimpleNamespace(
        dtype="float32",
        output_dtype="float32",
        narrowest_bits=24,
        operator=SimpleNamespace(erases=False),
    )
    problem = SimpleNamespace(
        shape=shape, length=length, knobs={}, scope=scope, inputs={}
    )
    return InfluenceMap("output", problem, measured, exact, bound, bound, places)


def lost_across(row, source, exact):
    return np.where(row // 16 > source // 16, 0.0, exact)


def test_every_class_has_its_letter():
    def changed(row, source, exact):
        values = (0.4, 0.6, -0.5, 0.0, np.nan, np.inf)
        return np.select([row * 7 + source == 42 + n for n in range(6)], values, exact)

    shown = picture(a_map(7, changed))
    assert shown.cells[:6] == tuple("." * n + " " * (7 - n) for n in range(1, 7))
    assert shown.cells[6] == "<>-0!!."
    leak = picture(a_map(3, lambda row, source, exact: exact + (row < source)))
    assert leak.cells == (".++", "..+", "...")


def test_one_wrong_entry_is_seen_among_thousands():
    def changed(row, source, exact):
        return np.where((row == 150) & (source == 77), 0.25, exact)

    shown = picture(a_map(200, changed))
    assert max(len(shown.rows), len(shown.columns)) <= CELLS
    assert "".join(shown.cells).count("<") == 1
    row = max(i for i, first in enumerate(shown.rows) if first <= 150)
    column = max(i for i, first in enumerate(shown.columns) if first <= 77)
    assert shown.cells[row][column] == "<"
    assert shown.measured[row][column] == 0.25
    assert shown.exact[row][column] == 0.5


@pytest.mark.parametrize("chunk", [10, 16, 64, 100])
@pytest.mark.parametrize("length", [40, 150, 300])
def test_no_cell_crosses_the_edge_of_a_chunk(length, chunk):
    starts = picture(a_map(length), "", chunk).rows
    step = starts[1] - starts[0]
    assert chunk % step == 0 or step % chunk == 0
    assert len(starts) <= CELLS


def test_chunk_edges_come_out_exactly():
    shown = picture(a_map(64, lost_across), "pairs across edges of chunks of 16", 16)
    for row, line in zip(shown.rows, shown.cells, strict=True):
        assert line.count("0") == row // 16 * 16
    assert shown.chunk == 16


def test_the_head_that_is_wrong_shows():
    shown = picture(a_map(8, lambda row, source, exact: 2 * exact, heads=3))
    assert shown.part == "head 2"
    assert ">" in shown.cells[0]


def test_a_channel_that_is_named_goes_across():
    channels = np.arange(64) % 4
    entries = a_map(8, **{"key channel": channels})
    assert picture(entries).axes == ("row", "source")
    assert picture(entries, "key channel 3").axes == ("row", "key channel")


def test_states_before_the_first_token_have_a_column():
    entries = a_map(150)
    source = entries.coordinates["source"] - 1
    shown = picture(
        replace(entries, coordinates={**entries.coordinates, "source": source})
    )
    assert shown.columns[:2] == (-1, 0)


def test_what_has_no_two_axes_has_no_picture():
    entries = a_map(1)
    assert picture(entries) is None
    nothing = np.zeros(0)
    empty = InfluenceMap("output", None, *[nothing] * 4, {"row": nothing.astype(int)})
    assert picture(empty) is None
