"""Errors as curves and bars: inline SVG, read without colour, script or eyesight.

Every number drawn is an error as a multiple of its bound; above 1 no correct kernel can
be. Whatever exceeds the bound differs in shape as well as in colour.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from linkern.testing.report.html.drawing import (
    DECADES,
    HEIGHT,
    Scale,
    axis_title,
    counted,
    exceeds,
    figure,
    label,
    percent,
    picture,
    place,
    ratio_text,
    round_step,
    ticks_below,
    worst,
    worst_at,
)
from linkern.testing.report.html.markup import Element, element

__all__ = ["Edges", "curve", "histogram"]

# More marks than these are not told apart: neighbours are merged, the worst is shown.
_MOST_POINTS = 512
_MOST_DOTS = 64
_MOST_EDGES = 32
_MOST_NUMBERS = 14  # above the bars, on a narrow screen
_MOST_TICKS = 6


@dataclass(frozen=True)
class Edges:
    """Where chunks end.

    Parameters
    ----------
    every : int
        Their distance in tokens.
    known : str
        How that is known, "measured" say; empty if it is a guess.
    """

    every: int
    known: str = ""

    def sentence(self, shown: int) -> str:
        """Return what the dashed lines are, of which every `shown`-th is drawn."""
        some = "" if shown == 1 else f"; one in {shown} is drawn"
        if not self.known:
            return f"Dashed lines: multiples of {self.every}{some}."
        return f"Dashed lines: chunk edges, every {self.every} ({self.known}{some})."


def curve(name: str, ratios: Sequence[float], edges: Edges) -> Element:
    """Draw the largest error at each position of the worst input.

    Parameters
    ----------
    name : str
        Distinguishes the chart from the others of its page.
    ratios : sequence of float
        Errors as multiples of their bounds; not empty.
    edges : Edges
        Where vertical lines are drawn.
    """
    length = len(ratios)
    merged = -(-length // _MOST_POINTS)
    scale = Scale.of(ratios)
    ends = [(t, min(t + merged, length)) for t in range(0, length, merged)]
    points = [((a + b) / 2 / length, worst(ratios[a:b])) for a, b in ends]
    shown = -(-length // edges.every // _MOST_EDGES)
    marks = [
        *scale.rows(),
        *_edge_lines(edges, shown, length),
        *_line(points, scale),
        *ticks_below(range(length), HEIGHT),
        label("error / bound", -40, -14),
        axis_title("t (position)", HEIGHT),
    ]
    sentence = _curve_sentence(ratios)
    if length > edges.every:
        sentence += f" {edges.sentence(shown)}"
    if merged > 1:
        sentence += f" Each point is the largest of {merged} positions."
    title = "Error / bound along the sequence, in the worst input"
    narrow = max(320, length * 56)
    return figure(picture(name, title, sentence, marks, HEIGHT, widest=narrow))


def _curve_sentence(ratios: Sequence[float]) -> str:
    at = worst_at(ratios)
    sentence = (
        f"{counted(len(ratios), 'position')}. The largest error / bound is "
        f"{ratio_text(ratios[at])}, at {place('t', at)}."
    )
    beyond = [t for t, ratio in enumerate(ratios) if exceeds(ratio)]
    if beyond:
        times, first = counted(len(beyond), "position"), place("t", beyond[0])
        sentence += f" It is beyond the bound at {times}, first at {first}."
    return sentence


def _edge_lines(edges: Edges, shown: int, length: int) -> list[Element]:
    class_ = "edge" if edges.known else "edge guess"
    return [
        element(
            "line",
            x1=percent(t / length),
            x2=percent(t / length),
            y2=HEIGHT,
            class_=class_,
        )
        for t in range(edges.every * shown, length, edges.every * shown)
    ]


def _line(points: Sequence[tuple[float, float]], scale: Scale) -> list[Element]:
    """Return the curve, and its points where there is room for them."""
    path = " ".join(f"{1000 * x:.6g},{scale.height(y):.6g}" for x, y in points)
    line = element("polyline", points=path, class_="curve")
    # Points cannot be percentages, so the line has a box that stretches by itself.
    box = {"viewBox": f"0 0 1000 {HEIGHT}", "preserveAspectRatio": "none"}
    marks = [element("svg", line, width="100%", height=HEIGHT, **box)]
    if len(points) > _MOST_DOTS:
        return marks
    for x, y in points:
        centre = {"x": percent(x), "y": scale.height(y)}
        if exceeds(y):
            square = {"width": 8, "height": 8, "transform": "translate(-4 -4)"}
            marks.append(element("rect", class_="dot outside", **centre, **square))
        else:
            at = {"cx": centre["x"], "cy": centre["y"]}
            marks.append(element("circle", r=2.5, class_="dot", **at))
    return marks


@dataclass(frozen=True)
class _Bin:
    """Ratios above `low` and up to `high`, and the slot where their bar stands."""

    low: float
    high: float
    count: int
    slot: int


def histogram(name: str, ratios: Sequence[float]) -> Element:
    """Draw how many comparisons came how close to their bound.

    Parameters
    ----------
    name : str
        Distinguishes the chart from the others of its page.
    ratios : sequence of float
        The largest error of each comparison as a multiple of its bound; not empty.
    """
    bins = _bins(ratios)
    slots = bins[-1].slot + 1
    one = percent(next(b.slot for b in bins if b.low == 1) / slots)
    marks = [
        element("line", x2="100%", y1=HEIGHT, y2=HEIGHT, class_="axis"),
        *_bars(bins, slots),
        element("line", x1=one, x2=one, y2=HEIGHT, class_="bound"),
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
    title = "How close to the bound"
    return figure(picture(name, title, sentence, marks, HEIGHT))


def _bins(ratios: Sequence[float]) -> list[_Bin]:
    """Return zero, parts of decades from the smallest to past the bound, infinity."""
    powers = [math.log10(ratio) for ratio in ratios if 0 < ratio < math.inf]
    low = max(math.floor(min(powers, default=0)), DECADES[0])
    low = min(low, -1)
    high = min(max(math.ceil(max(powers, default=0)), 1), DECADES[1])
    parts = 2 if high - low <= 6 else 1
    counts = [0] * ((high - low) * parts)
    for power in powers:
        i = math.ceil(power * parts) - low * parts - 1
        counts[min(max(i, 0), len(counts) - 1)] += 1
    edges = [10.0 ** (low + i / parts) for i in range(len(counts) + 1)]
    decades = [
        _Bin(edges[i], edges[i + 1], count, i + 2) for i, count in enumerate(counts)
    ]
    infinite = sum(not ratio < math.inf for ratio in ratios)
    return [
        _Bin(0.0, 0.0, sum(ratio == 0 for ratio in ratios), 0),
        *decades,
        _Bin(math.inf, math.inf, infinite, len(counts) + 3),
    ]


def _bars(bins: Sequence[_Bin], slots: int) -> list[Element]:
    most = max(entry.count for entry in bins)
    class_ = "roomy" if slots > _MOST_NUMBERS else None
    marks = []
    for entry in bins:
        if not entry.count:
            continue
        height = (HEIGHT - 18) * entry.count / most
        words = ratio_text(entry.low)
        if entry.low != entry.high:
            words = f"above {words}, up to {ratio_text(entry.high)}"
        marks += [
            element(
                "rect",
                element("title", f"{entry.count} with error / bound {words}"),
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


def _bin_ticks(bins: Sequence[_Bin], slots: int) -> list[Element]:
    """Return labels under zero and infinity, and at the edges of decades."""
    zero, *decades, infinite = bins
    parts = round(1 / math.log10(decades[0].high / decades[0].low))
    every = parts * round_step(len(decades) / parts / _MOST_TICKS)
    ends = [entry.low for entry in decades] + [decades[-1].high]
    one = ends.index(1.0)
    ticks = [("0", zero.slot + 0.5), ("∞", infinite.slot + 0.5)]
    for i, end in enumerate(ends):
        if (i - one) % every == 0:
            ticks.append((ratio_text(end), i + decades[0].slot))
    return [label(text, percent(x / slots), HEIGHT + 18, "middle") for text, x in ticks]
