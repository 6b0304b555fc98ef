"""Thumbnails: their width, their letters, and the rules at chunk edges."""

from dataclasses import replace

import pytest

from linkern.testing.diagnosis.diagnosis import Picture
from linkern.testing.report.thumbnail import CELLS, WIDTH, counted_cells, thumbnail


def square(number, step, letter=".", chunk=None):
    starts = tuple(range(0, number * step, step))
    cells = tuple(letter * (i + 1) + " " * (number - i - 1) for i in range(number))
    return Picture("output", ("row", "source"), starts, starts, cells, (), (), chunk)


def shown(picture, **options):
    return list(thumbnail(picture, **options))


@pytest.mark.parametrize("number", [1, 2, 23, 24, 25, 64])
@pytest.mark.parametrize("chunk", [None, 16, 64, 100])
def test_it_fits_into_its_width(number, chunk):
    picture = replace(square(number, 4, chunk=chunk), part="batch 0, head 1")
    lines = shown(picture)
    assert max(map(len, lines)) <= WIDTH
    assert all(line == line.rstrip() for line in lines)
    assert lines[0].split() == ["0", "·"] or "│" in lines[0]
    assert len([line for line in lines if "·" in line]) <= CELLS + 2


def test_a_wrong_cell_is_never_covered_by_right_ones():
    picture = square(64, 4)
    cells = list(picture.cells)
    cells[41] = cells[41][:7] + "!" + cells[41][8:]
    lines = shown(replace(picture, cells=tuple(cells)))
    assert next(line for line in lines if "!" in line).split()[0] == str(4 * 39)
    assert "! not finite" in " ".join("".join(lines[-2:]).split())


def test_of_wrong_cells_the_most_frequent_one_shows():
    picture = square(48, 1)
    cells = ["<" + "0" * 47, *picture.cells[1:]]
    first = shown(replace(picture, cells=tuple(cells)))[0]
    assert first.split()[1] in "<0"
    assert first.split()[2:] == ["0"] * 23


def test_rules_stand_at_the_edges_of_chunks():
    lines = shown(square(8, 8, chunk=32))
    assert lines[4].strip() == "───────┼───────"
    assert lines[0].index("│") == lines[4].index("┼")
    assert not any("│" in line for line in shown(square(8, 8)))
    # A chunk of one cell needs no rule, and one that is longer than the map has none.
    for chunk in (8, 64):
        assert not any("│" in line for line in shown(square(8, 8, chunk=chunk)))


def test_cells_are_joined_within_chunks():
    first = [line.split()[0] for line in shown(square(38, 4, chunk=16))]
    assert first[:4] == ["0", "8", "16", "24"]


def test_terminals_without_unicode_get_ascii():
    lines = shown(square(8, 8, chunk=32), ascii_only=True)
    assert all(line.isascii() for line in lines)
    assert lines[4].strip() == "-------+-------"
    assert lines[0].split() == ["0", ".", "|"]


def test_cells_are_counted_by_class():
    assert counted_cells(square(3, 1, "<")) == {"<": 6}
