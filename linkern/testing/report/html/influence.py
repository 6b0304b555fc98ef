"""Charts of an influence map: measured, exact, and their ratio, cell by cell."""

import math
from collections.abc import Callable, Iterator, Sequence

from linkern.testing.diagnosis.diagnosis import Picture
from linkern.testing.report.html.marks import (
    Chart,
    Mark,
    axis_title,
    counted,
    label,
    round_step,
    ticks_below,
)
from linkern.testing.report.thumbnail import LETTERS, counted_cells, edges

__all__ = ["influence"]

# Pixels of a chart: its height, and its width at most.
SIDE, WIDEST = 224, 340
# Shades of weights, by the least share that they are of the largest exact one.
_SHADES = ((0.3, "weight-4"), (0.03, "weight-3"), (1e-3, "weight-2"), (0.0, "weight-1"))
_CLASSES = {
    ".": "right",
    "0": "lost",
    "<": "smaller",
    ">": "larger",
    "-": "opposite",
    "+": "leaked",
    "!": "lost",
}


def influence(name: str, picture: Picture) -> Iterator[Chart]:
    """Yield the charts of a map; beside each other they have the same cells.

    Parameters
    ----------
    name : str
        Start of the names of the charts, which a page has once.
    picture : Picture
        The map.
    """
    largest = max((abs(x) for x in _finite(picture.exact)), default=0.0)

    def shade(x: float) -> str:
        if math.isnan(x):
            return ""
        if x == 0:
            return "zero"
        share = abs(x) / largest if largest else math.inf
        return next((shade for least, shade in _SHADES if share >= least), "lost")

    down, across = picture.axes
    part = f", of {picture.part}" if picture.part else ""
    size = f"{len(picture.rows)} by {len(picture.columns)} cells"
    letters = counted_cells(picture)
    counts = ", ".join(f"{counted(n, 'cell')} {LETTERS[x]}" for x, n in letters.items())
    ruled = f" Lines: edges of chunks of {picture.chunk}." if _ruled(picture) else ""
    for kind, values in (("measured", picture.measured), ("exact", picture.exact)):
        sentence = (
            f"{size}, {down}s down, {across}s across{part}; stronger colours are "
            f"larger, and the largest exact one is {largest:.3g}.{ruled}"
        )
        marks = _marks(picture, [[shade(x) for x in line] for line in values])
        yield _chart(f"{name}-{kind}", f"{picture.tensor}, {kind}", sentence, marks)
    classes = [[_CLASSES.get(x, "") for x in line] for line in picture.cells]
    worst = f"The entry of a cell is the furthest beyond its bound: {counts}.{ruled}"
    marks = _marks(picture, classes, outlined=lambda x: x not in ("", "right"))
    title = f"{picture.tensor}, measured / exact"
    yield _chart(f"{name}-ratio", title, worst, marks)


def _chart(name: str, title: str, sentence: str, marks: Sequence[Mark]) -> Chart:
    return Chart(name, title, sentence, marks, SIDE, WIDEST)


def _finite(values: Sequence[Sequence[float]]) -> list[float]:
    return [x for line in values for x in line if math.isfinite(x)]


def _ruled(picture: Picture) -> bool:
    return any(
        edges(picture, x, i) for i, x in enumerate((picture.rows, picture.columns))
    )


def _marks(
    picture: Picture,
    classes: Sequence[Sequence[str]],
    outlined: Callable[[str], bool] = lambda _: False,
) -> list[Mark]:
    """Return the cells as one path for each class, the rules, and the ticks."""
    height, width = len(picture.rows), len(picture.columns)
    paths: dict[str, str] = {}
    strokes = ""
    for y, line in enumerate(classes):
        for x, length, class_ in _runs(line):
            if not class_:
                continue
            here = f"M{x} {y}h{length}v1h-{length}z"
            paths[class_] = paths.get(class_, "") + here
            if outlined(class_):
                strokes += "".join(f"M{i} {y + 1}l1-1" for i in range(x, x + length))
    inside = [Mark("path", {"d": d, "class": f"entry {c}"}) for c, d in paths.items()]
    if strokes and max(height, width) <= SIDE // 8:
        inside.append(Mark("path", {"d": strokes, "class": "mark thin"}))
    rows, columns = (
        edges(picture, x, i) for i, x in enumerate((picture.rows, picture.columns))
    )
    rules = "".join(f"M0 {y}h{width}" for y in sorted(rows))
    rules += "".join(f"M{x} 0v{height}" for x in sorted(columns))
    if rules:
        inside.append(Mark("path", {"d": rules, "class": "edge thin"}))
    box = {
        "width": "100%",
        "height": SIDE,
        "viewBox": f"0 0 {width} {height}",
        "preserveAspectRatio": "none",
    }
    step = round_step(height / 7)
    ticks = [
        label(str(picture.rows[y]), -8, (y + 0.5) * SIDE / height + 4, "end")
        for y in range(0, height, step)
    ]
    return [
        Mark("svg", box, inside=tuple(inside)),
        *ticks,
        label(picture.axes[0], -40, -8),
        *ticks_below(picture.columns, SIDE),
        axis_title(picture.axes[1], SIDE),
    ]


def _runs(line: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """Yield the first cell, the length and the class of equal neighbours."""
    start = 0
    for x in range(1, len(line) + 1):
        if x == len(line) or line[x] != line[start]:
            yield start, x - start, line[start]
            start = x
