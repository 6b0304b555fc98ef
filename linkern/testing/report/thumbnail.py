"""Thumbnail of an influence map: a letter for each cell, and rules at chunk edges."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from linkern.testing.diagnosis.diagnosis import Picture

__all__ = ["LETTERS", "counted_cells", "edges", "thumbnail"]

# Classes of cells, in the order of legends.
LETTERS = {
    ".": "right",
    "0": "lost",
    "<": "too small",
    ">": "too large",
    "-": "of the other sign",
    "+": "nothing belongs here",
    "!": "not finite",
}
# Cells along an axis, at most, characters of a line, and lines besides the legend.
CELLS, WIDTH, LINES = 24, 60, 26
_DRAWN = {".": "·", "|": "│", "-": "─", "+": "┼"}


def thumbnail(picture: Picture, *, ascii_only: bool = False) -> Iterator[str]:
    """Yield the lines of a thumbnail: rows go down, and a legend comes last.

    Rules are drawn at chunk edges; those across only if `LINES` leave room for them.

    Parameters
    ----------
    picture : Picture
        The map.
    ascii_only : bool
        Use no other characters than those of ASCII.

    Examples
    --------
    >>> axes = "row", "source"
    >>> lines = thumbnail(Picture("output", axes, (0, 8), (0, 8), (". ", "0."), (), ()))
    >>> for line in lines:
    ...     print(line)
     0 ·
     8 0 ·
       rows down, sources across, 8 to a cell: · right, 0 lost
    """
    drawn = {} if ascii_only else _DRAWN
    rows, across = _groups(picture, 0), _groups(picture, 1)
    ruled_rows = edges(picture, [picture.rows[i[0]] for i in rows], 0)
    ruled = edges(picture, [picture.columns[i[0]] for i in across], 1)
    gutter = max(len(str(picture.rows[i[0]])) for i in rows) + 1
    line, crossing = (drawn.get(x, x) for x in "-+")
    rule = "".join(
        (crossing if j in ruled else line) * (j > 0) + line for j in range(len(across))
    )
    for i, group in enumerate(rows):
        if i in ruled_rows and len(rows) + len(ruled_rows) <= LINES:
            yield " " * (gutter + 1) + rule
        cells = [
            _worst([picture.cells[r][c] for r in group for c in g]) for g in across
        ]
        text = "".join(
            (drawn.get("|", "|") if j in ruled else " ") * (j > 0)
            + (drawn.get(cell, cell) if cell == "." else cell)
            for j, cell in enumerate(cells)
        )
        yield f"{picture.rows[group[0]]:{gutter}} {text}".rstrip()
    yield from _legend(picture, rows, gutter, drawn)


def counted_cells(picture: Picture) -> dict[str, int]:
    """Return how many cells are of each class, in the order of legends."""
    counts = Counter("".join(picture.cells))
    return {letter: counts[letter] for letter in LETTERS if counts[letter]}


def edges(picture: Picture, starts: Sequence[int], axis: int) -> set[int]:
    """Return the cells in front of which a chunk ends, where a chunk has several."""
    chunk = picture.chunk
    if chunk is None or picture.axes[axis] not in ("row", "source"):
        return set()
    inside = [i for i, start in enumerate(starts) if start > 0]
    at = {i for i in inside if starts[i] % chunk == 0}
    return at if 2 * len(at) <= len(inside) else set()


def _groups(picture: Picture, axis: int) -> list[range]:
    """Return the cells of the picture that one cell of the thumbnail stands for."""
    starts = (picture.rows, picture.columns)[axis]
    size = -(-len(starts) // CELLS)
    if picture.chunk is not None and len(starts) > 1:
        cells = picture.chunk // max(starts[-1] - starts[-2], 1)
        size = next((n for n in range(size, cells + 1) if cells % n == 0), size)
    return [range(i, min(i + size, len(starts))) for i in range(0, len(starts), size)]


def _worst(letters: Sequence[str]) -> str:
    """Return the most frequent class of a wrong cell; of right ones, if none is."""
    counts = Counter(letters)
    wrong = [x for x in counts if x not in " ."]
    if wrong:
        return max(wrong, key=counts.__getitem__)
    return "." if "." in counts else " "


def _legend(
    picture: Picture, rows: Sequence[range], gutter: int, drawn: dict[str, str]
) -> Iterator[str]:
    """Yield the axes and the classes that are shown, in lines of at most `WIDTH`."""
    down, across = (f"{name}s" for name in picture.axes)
    starts = [picture.rows[group[0]] for group in rows]
    steps = {b - a for a, b in pairwise(starts)}
    width = f", {max(steps)} to a cell" if len(steps) == 1 and steps != {1} else ""
    shown = counted_cells(picture)
    classes = [f"{drawn.get(x, x) if x == '.' else x} {LETTERS[x]}" for x in shown]
    part = f" ({picture.part})" if picture.part else ""
    words = f"{down} down, {across} across{part}{width}: {', '.join(classes)}".split()
    indent = " " * (gutter + 1)
    line = indent
    for word in words:
        if len(line) + len(word) > WIDTH and line != indent:
            yield line.rstrip()
            line = indent
        line += word + " "
    yield line.rstrip()
