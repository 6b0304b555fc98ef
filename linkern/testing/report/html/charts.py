"""Charts of the report page as SVG marks: a curve, a histogram and a heat map.

Every number drawn is an error as a multiple of its bound; above 1 no correct kernel can
be. What exceeds the bound differs in shape as well as in colour. Horizontal positions
are percentages and heights are pixels, so that a chart fits every screen while its text
keeps its size.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from linkern.testing.report.html.marks import (
    DECADES,
    HEIGHT,
    Chart,
    Mark,
    Scale,
    axis_title,
    counted,
    exceeds,
    horizontal,
    label,
    mark,
    percent,
    place,
    ratio_text,
    round_step,
    ticks_below,
    vertical,
    worst,
    worst_at,
)

__all__ = ["SHADES", "Edges", "curve", "heat_map", "histogram"]

# Neighbours are merged into this many points or cells, and the worst of them is drawn.
_MOST_POINTS, _MOST_COLUMNS, _MOST_ROWS = 512, 64, 32
_MOST_DOTS = 64
_MOST_EDGES = 32
# Bars, and cells in a row, with room for a number on a narrow screen; cells on a wide
# one.
_MOST_COUNTS, _MOST_NUMBERS_ON_PHONES, _MOST_NUMBERS = 14, 6, 12
_MOST_TICKS = 6
SHADES = (  # of a heat map, and their upper ends
    (0.0, "zero"),
    (0.01, "low"),
    (0.1, "middle"),
    (1.0, "near"),
    (10.0, "over"),
    (1000.0, "far"),
    (math.inf, "lost"),
)


@dataclass(frozen=True)
class Edges:
    """Chunk size in tokens, and how it is known: "measured", say; empty for a guess."""

    every: int
    known: str = ""

    def sentence(self, shown: int) -> str:
        """Return the meaning of the dashed lines, drawn at every `shown`-th edge."""
        some = "" if shown == 1 else f"; one in {shown} is drawn"
        if not self.known:
            return f"Dashed lines: multiples of {self.every}{some}."
        return f"Dashed lines: chunk edges, every {self.every} ({self.known}{some})."


def curve(name: str, ratios: Sequence[float], edges: Edges) -> Chart:
    """Draw the largest error at each position of the worst input."""
    length = len(ratios)
    merged = -(-length // _MOST_POINTS)
    ends = [(t, min(t + merged, length)) for t in range(0, length, merged)]
    points = [((a + b) / 2 / length, worst(ratios[a:b])) for a, b in ends]
    scale = Scale.covering(ratios)
    shown = -(-length // edges.every // _MOST_EDGES)
    step = edges.every * shown
    dashed = "edge" if edges.known else "edge guess"
    marks = [
        *scale.rows(),
        *(vertical(percent(t / length), dashed) for t in range(step, length, step)),
        *_line(points, scale),
        *ticks_below(range(length), HEIGHT),
        label("error / bound", -40, -14),
        axis_title("t (position)", HEIGHT),
    ]
    at = worst_at(ratios)
    sentence = (
        f"{counted(length, 'position')}. The largest error / bound is "
        f"{ratio_text(ratios[at])}, at {place('t', at)}."
    )
    beyond = [t for t, ratio in enumerate(ratios) if exceeds(ratio)]
    if beyond:
        times, first = counted(len(beyond), "position"), place("t", beyond[0])
        sentence += f" It is beyond the bound at {times}, first at {first}."
    if length > edges.every:
        sentence += f" {edges.sentence(shown)}"
    if merged > 1:
        sentence += f" Each point is the largest of {merged} positions."
    title = "Error / bound along the sequence, in the worst input"
    return Chart(name, title, sentence, marks, widest=max(320, length * 56))


def _line(points: Sequence[tuple[float, float]], scale: Scale) -> list[Mark]:
    """Return the curve, and its points where there is room for them."""
    path = " ".join(f"{1000 * x:.6g},{scale.height(y):.6g}" for x, y in points)
    line = mark("polyline", points=path, class_="curve")
    # Points cannot be percentages, so the line has a box that stretches by itself.
    box = {
        "width": "100%",
        "height": HEIGHT,
        "viewBox": f"0 0 1000 {HEIGHT}",
        "preserveAspectRatio": "none",
    }
    marks = [Mark("svg", box, inside=(line,))]
    for x, y in points if len(points) <= _MOST_DOTS else ():
        at, height = percent(x), scale.height(y)
        if exceeds(y):
            square: dict[str, Any] = {
                "width": 8,
                "height": 8,
                "transform": "translate(-4 -4)",
            }
            marks.append(mark("rect", x=at, y=height, class_="dot outside", **square))
        else:
            marks.append(mark("circle", cx=at, cy=height, r=2.5, class_="dot"))
    return marks


def histogram(name: str, ratios: Sequence[float]) -> Chart:
    """Draw how many comparisons came how close to their bound."""
    bins = _bins(ratios)
    slots = bins[-1].slot + 1
    one = percent(next(b.slot for b in bins if b.low == 1) / slots)
    marks = [
        horizontal(HEIGHT, "axis"),
        *_bars(bins, slots),
        vertical(one, "bound"),
        label("bound", one, -6, "middle", "strong"),
        *_bin_ticks(bins, slots),
        label("comparisons", -40, -14),
        axis_title("error / bound", HEIGHT),
    ]
    exact, beyond = ratios.count(0), sum(map(exceeds, ratios))
    sentence = (
        f"{counted(len(ratios), 'comparison')}: {exact} exact, "
        f"{len(ratios) - exact - beyond} within the bound, {beyond} beyond it."
    )
    return Chart(name, "How close to the bound", sentence, marks)


@dataclass(frozen=True)
class _Bin:
    """Ratios above `low` and up to `high`, and the slot where their bar stands."""

    low: float
    high: float
    count: int
    slot: int


def _bins(ratios: Sequence[float]) -> list[_Bin]:
    """Return zero, parts of decades from the smallest to past the bound, infinity."""
    powers = [math.log10(ratio) for ratio in ratios if 0 < ratio < math.inf]
    low = min(max(math.floor(min(powers, default=0)), DECADES[0]), -1)
    high = min(max(math.ceil(max(powers, default=0)), 1), DECADES[1])
    parts = 2 if high - low <= 6 else 1
    counts = [0] * ((high - low) * parts)
    for power in powers:
        i = math.ceil(power * parts) - low * parts - 1
        counts[min(max(i, 0), len(counts) - 1)] += 1
    edges = [10.0 ** (low + i / parts) for i in range(len(counts) + 1)]
    infinite = sum(not ratio < math.inf for ratio in ratios)
    return [
        _Bin(0.0, 0.0, ratios.count(0), 0),
        *(_Bin(edges[i], edges[i + 1], n, i + 2) for i, n in enumerate(counts)),
        _Bin(math.inf, math.inf, infinite, len(counts) + 3),
    ]


def _bars(bins: Sequence[_Bin], slots: int) -> list[Mark]:
    most = max(entry.count for entry in bins)
    class_ = "roomy" if slots > _MOST_COUNTS else None
    marks = []
    for entry in filter(lambda entry: entry.count, bins):
        height = (HEIGHT - 18) * entry.count / most
        words = ratio_text(entry.low)
        if entry.low != entry.high:
            words = f"above {words}, up to {ratio_text(entry.high)}"
        marks += [
            mark(
                "rect",
                "",
                mark("title", f"{entry.count} with error / bound {words}"),
                x=percent((entry.slot + 0.08) / slots),
                y=HEIGHT - height,
                width=percent(0.84 / slots),
                height=height,
                class_="bar outside" if entry.low >= 1 else "bar",
            ),
            label(
                str(entry.count),
                percent((entry.slot + 0.5) / slots),
                HEIGHT - height - 4,
                "middle",
                class_,
            ),
        ]
    return marks


def _bin_ticks(bins: Sequence[_Bin], slots: int) -> list[Mark]:
    """Return labels under zero and infinity, and at the edges of decades."""
    zero, *decades, infinite = bins
    parts = round(1 / math.log10(decades[0].high / decades[0].low))
    every = parts * round_step(len(decades) / parts / _MOST_TICKS)
    ends = [entry.low for entry in decades] + [decades[-1].high]
    ticks = [("0", zero.slot + 0.5), ("∞", infinite.slot + 0.5)]
    for i, end in enumerate(ends):
        if (i - ends.index(1.0)) % every == 0:
            ticks.append((ratio_text(end), i + decades[0].slot))
    return [label(text, percent(x / slots), HEIGHT + 18, "middle") for text, x in ticks]


def heat_map(name: str, errors: Sequence[Sequence[float]]) -> Chart:
    """Draw the error of every entry of one head of the smallest input, ``(T, V)``.

    Cells beyond the bound are outlined and carry their number, or a stroke where
    numbers have no room; shades get darker (on a dark page: lighter) as errors grow, so
    that they keep their order in grey.
    """
    tokens, channels = len(errors), len(errors[0])
    across, down = -(-tokens // _MOST_COLUMNS), -(-channels // _MOST_ROWS)
    cells = [
        [
            worst(e for row in errors[t : t + across] for e in row[v : v + down])
            for t in range(0, tokens, across)
        ]
        for v in range(0, channels, down)
    ]
    columns, rows = len(cells[0]), len(cells)
    side = 24 if rows <= 12 else 12
    marks = [
        *_cells(cells, side),
        *ticks_below([i * across for i in range(columns)], rows * side),
        *(
            label(str(i * down), -8, (i + 0.5) * side + 4, "end")
            for i in range(0, rows, round_step(18 / side))
        ),
        label("v (channel)", -40, -14),
        axis_title("t (position)", rows * side),
    ]
    entries = [e for row in errors for e in row]
    t, v = divmod(worst_at(entries), channels)
    sentence = (
        f"{counted(len(entries), 'entry', 'entries')} of this head, "
        f"{sum(map(exceeds, entries))} beyond the bound. The largest error / bound is "
        f"{ratio_text(worst(entries))}, at {place('t', t)}, {place('v', v)}."
    )
    if across * down > 1:
        sentence += f" Each cell is the largest of {across} by {down} entries (t by v)."
    title = "Error / bound in the smallest input, entry by entry"
    widest = max(columns, 2) * 56
    return Chart(name, title, sentence, marks, rows * side, widest, SHADES)


def _cells(cells: Sequence[Sequence[float]], side: int) -> list[Mark]:
    columns = len(cells[0])
    # What exceeds the bound is drawn last, so that its outline lies on top.
    drawn: tuple[list[Mark], list[Mark]] = ([], [])
    for v, row in enumerate(cells):
        for t, ratio in enumerate(row):
            beyond = exceeds(ratio)
            shade = next((name for end, name in SHADES if ratio <= end), "lost")
            left, right = percent(t / columns), percent((t + 1) / columns)
            top, bottom = v * side, (v + 1) * side
            class_ = f"cell {shade}{' outside' if beyond else ''}"
            box = {"x": left, "width": percent(1 / columns), "class": class_}
            drawn[beyond].append(Mark("rect", {**box, "y": top, "height": side}))
            if columns <= _MOST_NUMBERS:
                roomy = " roomy" if columns > _MOST_NUMBERS_ON_PHONES else ""
                x, y = percent((t + 0.5) / columns), (v + 0.5) * side + 4
                class_ = f"number on-{shade}{roomy}"
                drawn[beyond].append(label(_short(ratio), x, y, "middle", class_))
            elif beyond:
                ends = {"x1": left, "y1": bottom, "x2": right, "y2": top}
                drawn[beyond].append(Mark("line", {**ends, "class": "mark"}))
    return [*drawn[False], *drawn[True]]


def _short(ratio: float) -> str:
    """Return a ratio in the five characters that a cell has room for."""
    if 0 < ratio < 0.01:
        return "<0.01"
    if 1e4 <= ratio < math.inf:
        mantissa, _, exponent = f"{ratio:.0e}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{ratio:.2g}" if ratio < 1 else ratio_text(ratio)
