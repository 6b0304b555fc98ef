"""What every chart is made of: a scale of decades, axes, labels, a frame with words.

Horizontal positions are percentages and heights are pixels, so that a chart fits every
screen while its text keeps its size.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from linkern.testing.report.html.markup import Element, Node, element

__all__ = [
    "HEIGHT",
    "Scale",
    "axis_title",
    "counted",
    "exceeds",
    "figure",
    "label",
    "percent",
    "picture",
    "place",
    "ratio_text",
    "ticks_below",
    "worst",
    "worst_at",
]

HEIGHT = 176  # of a plot, in pixels
# Decades that a chart spans at most; what lies beyond is drawn at its end.
DECADES = (-8, 12)
# What a logarithmic scale has no place for gets a row of this height, in pixels.
_ROW = 20
# What ticks and the name of the horizontal axis take under a plot, in pixels.
_BELOW = 44
_MOST_LABELS = 7


@dataclass(frozen=True)
class Scale:
    """Ratios as heights: decades, above them infinity, below them what is too small.

    Parameters
    ----------
    low, high : int
        Exponents of the first and the last decade.
    infinite : bool
        Whether there is a row for infinity and NaN.
    floor : str
        Label of the row for zero and all below the first decade; empty for none.
    """

    low: int
    high: int
    infinite: bool
    floor: str

    @classmethod
    def of(cls, ratios: Sequence[float]) -> "Scale":
        """Return the scale on which all of `ratios` have a place, and 1 has too."""
        powers = [math.log10(r) for r in ratios if 0 < r < math.inf]
        low = max(min(math.floor(min(powers, default=0)), -1), DECADES[0])
        high = min(max(math.ceil(max(powers, default=0)), 1), DECADES[1])
        small = [r for r in ratios if r < 10.0**low]
        floor = f"<{ratio_text(10.0**low)}" if any(small) else "0" if small else ""
        return cls(low, high, any(not r < math.inf for r in ratios), floor)

    def height(self, ratio: float) -> float:
        """Return where a ratio is, in pixels from the top."""
        if not ratio < math.inf:
            return 0.0
        if ratio < 10.0**self.low:
            return float(HEIGHT)
        top = _ROW if self.infinite else 0
        bottom = HEIGHT - _ROW if self.floor else HEIGHT
        part = (min(math.log10(ratio), self.high) - self.low) / (self.high - self.low)
        return bottom - part * (bottom - top)

    def rows(self) -> list[Element]:
        """Return the grid, its labels, and the line that no correct kernel crosses."""
        one = self.height(1.0)
        marks = [element("rect", width="100%", height=one, class_="beyond")]
        for power in range(self.low, self.high + 1):
            if power % (-(-(self.high - self.low) // _MOST_LABELS)) == 0:
                ratio = 10.0**power
                marks += _row(ratio_text(ratio), self.height(ratio))
        if self.infinite:
            marks += _row("∞", self.height(math.inf))
        if self.floor:
            marks += _row(self.floor, self.height(0.0))
        line = element("line", x2="100%", y1=one, y2=one, class_="bound")
        return [*marks, line, label("bound", "100%", one - 5, "end", "strong")]


def _row(text: str, y: float) -> list[Element]:
    line = element("line", x2="100%", y1=y, y2=y, class_="grid")
    return [line, label(text, -8, y + 4, "end")]


def percent(part: float) -> str:
    """Return a part of the width as an SVG length."""
    return f"{100 * part:.6g}%"


def label(
    text: str, x: object, y: float, anchor: str = "start", class_: str | None = None
) -> Element:
    """Return a piece of text in a chart."""
    return element("text", text, x=x, y=y, text_anchor=anchor, class_=class_)


def axis_title(text: str, height: float) -> Element:
    """Return the name of the horizontal axis of a plot of that height."""
    return label(text, "50%", height + 36, "middle")


def ticks_below(positions: Sequence[int], height: float) -> list[Element]:
    """Return labels of equal steps under a plot, in the middle of each."""
    step = round_step(len(positions) / _MOST_LABELS)
    return [
        label(
            str(positions[i]),
            percent((i + 0.5) / len(positions)),
            height + 18,
            "middle",
        )
        for i in range(0, len(positions), step)
    ]


def round_step(least: float) -> int:
    """Return the first of 1, 2, 5, 10, 20, ... that is not below `least`."""
    power = 1
    while True:
        for step in (power, 2 * power, 5 * power):
            if step >= least:
                return step
        power *= 10


def picture(
    name: str,
    title: str,
    sentence: str,
    marks: Sequence[Element],
    height: float,
    *,
    widest: int | None = None,
) -> Element:
    """Return a chart of that height, with the words that stand for it.

    Parameters
    ----------
    name : str
        Distinguishes the chart from the others of its page.
    title, sentence : str
        What it is, and what it shows.
    marks : sequence of Element
        What is drawn.
    height : float
        Of the plot, in pixels; the labels come on top of it.
    widest : int, optional
        How many pixels the plot may take at most.
    """
    return element(
        "svg",
        element("title", title, id=f"{name}-title"),
        element("desc", sentence, id=f"{name}-desc"),
        *marks,
        role="img",
        aria_labelledby=f"{name}-title",
        aria_describedby=f"{name}-desc",
        height=height + _BELOW,
        style=None if widest is None else f"max-width: {widest}px",
    )


def figure(chart: Element, *below: Node) -> Element:
    """Return a chart under a caption with its words."""
    title, sentence = chart.children[:2]
    assert isinstance(title, Element)
    assert isinstance(sentence, Element)
    words = (element("strong", *title.children), " ", *sentence.children)
    return element("figure", element("figcaption", *words), chart, *below)


def ratio_text(ratio: float) -> str:
    """Return an error as a multiple of its bound, for people.

    Examples
    --------
    >>> ratio_text(1.634), ratio_text(2e-7), ratio_text(float("inf"))
    ('1.63', '2e-7', '∞')
    """
    if math.isnan(ratio):
        return "NaN"
    if math.isinf(ratio):
        return "∞"
    if 1e3 <= ratio < 1e5:
        return f"{ratio:.0f}"
    mantissa, e, exponent = f"{ratio:.3g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if e else mantissa


def counted(number: int, thing: str, things: str | None = None) -> str:
    """Return a number and what it counts."""
    return f"{number} {thing if number == 1 else things or thing + 's'}"


def place(axis: str, index: int) -> str:
    """Return where something is on an axis, in one word that no line break parts."""
    return f"{axis}\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{index}"


def exceeds(ratio: float) -> bool:
    """Return whether no correct kernel can have that error; NaN never is correct."""
    return not ratio <= 1


def worst(ratios: Iterable[float]) -> float:
    """Return the largest ratio; NaN is worse than infinity."""
    return max(ratios, key=_badness)


def worst_at(ratios: Sequence[float]) -> int:
    """Return where the largest ratio is first."""
    return max(range(len(ratios)), key=lambda i: _badness(ratios[i]))


def _badness(ratio: float) -> tuple[bool, float]:
    return (True, 0.0) if math.isnan(ratio) else (False, ratio)
