"""SVG marks, the logarithmic scale and the texts that the charts of a page share."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = [
    "DECADES",
    "HEIGHT",
    "Chart",
    "Mark",
    "Scale",
    "axis_title",
    "counted",
    "exceeds",
    "horizontal",
    "label",
    "mark",
    "percent",
    "place",
    "ratio_text",
    "round_step",
    "ticks_below",
    "vertical",
    "worst",
    "worst_at",
]

HEIGHT = 176  # of a plot, in pixels
# Decades that a chart spans at most; what lies beyond is drawn at its end.
DECADES = (-8, 12)
# Height of the rows for zero and infinity, which a logarithmic scale lacks, in pixels.
_ROW = 20
_MOST_LABELS = 7


@dataclass(frozen=True)
class Mark:
    """One SVG element: its tag, attributes and text, and the elements inside it."""

    tag: str
    attributes: Mapping[str, object]
    text: str = ""
    inside: tuple["Mark", ...] = ()


@dataclass(frozen=True)
class Chart:
    """A named plot, the words that stand for it, and the shades of its legend.

    Its width is that of the page, and at most `widest` pixels.
    """

    name: str
    title: str
    sentence: str
    marks: Sequence[Mark]
    height: int = HEIGHT
    widest: int | None = None
    shades: Sequence[tuple[float, str]] = ()


def mark(tag: str, text: str = "", *inside: Mark, **attributes: object) -> Mark:
    """Return an element; `class_` is ``class``, `text_anchor` is ``text-anchor``."""
    written = {
        key.rstrip("_").replace("_", "-"): (
            f"{value:.6g}" if isinstance(value, float) else value
        )
        for key, value in attributes.items()
    }
    return Mark(tag, written, text, inside)


def label(
    text: str, x: object, y: float, anchor: str = "start", class_: str | None = None
) -> Mark:
    """Return a piece of text in a chart."""
    return mark("text", text, x=x, y=y, text_anchor=anchor, class_=class_)


def horizontal(y: float, class_: str) -> Mark:
    """Return a line across the plot."""
    return mark("line", x2="100%", y1=y, y2=y, class_=class_)


def vertical(x: str, class_: str) -> Mark:
    """Return a line from the top to the bottom of the plot."""
    return mark("line", x1=x, x2=x, y2=HEIGHT, class_=class_)


def axis_title(text: str, height: float) -> Mark:
    """Return the name of the horizontal axis of a plot of that height."""
    return label(text, "50%", height + 36, "middle")


def ticks_below(positions: Sequence[int], height: float) -> list[Mark]:
    """Return labels of equal steps under a plot, in the middle of each."""
    count = len(positions)
    return [
        label(str(positions[i]), percent((i + 0.5) / count), height + 18, "middle")
        for i in range(0, count, round_step(count / _MOST_LABELS))
    ]


@dataclass(frozen=True)
class Scale:
    """Heights of ratios: decades, above them infinity, below them what is too small.

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
    def covering(cls, ratios: Sequence[float]) -> "Scale":
        """Return the scale on which all of `ratios` have a place, and 1 has too."""
        powers = [math.log10(r) for r in ratios if 0 < r < math.inf]
        low = max(min(math.floor(min(powers, default=0)), -1), DECADES[0])
        high = min(max(math.ceil(max(powers, default=0)), 1), DECADES[1])
        small = [r for r in ratios if r < 10.0**low]
        floor = f"<{ratio_text(10.0**low)}" if any(small) else "0" if small else ""
        return cls(low, high, any(not r < math.inf for r in ratios), floor)

    def height(self, ratio: float) -> float:
        """Return the position of a ratio, in pixels from the top."""
        if not ratio < math.inf:
            return 0.0
        if ratio < 10.0**self.low:
            return float(HEIGHT)
        top = _ROW if self.infinite else 0
        bottom = HEIGHT - _ROW if self.floor else HEIGHT
        part = (min(math.log10(ratio), self.high) - self.low) / (self.high - self.low)
        return bottom - part * (bottom - top)

    def rows(self) -> list[Mark]:
        """Return the grid, its labels, and the line that no correct kernel crosses."""
        step = -(-(self.high - self.low) // _MOST_LABELS)
        powers = (p for p in range(self.low, self.high + 1) if p % step == 0)
        rows = [(ratio_text(10.0**power), 10.0**power) for power in powers]
        if self.infinite:
            rows.append(("∞", math.inf))
        if self.floor:
            rows.append((self.floor, 0.0))
        one = self.height(1.0)
        marks = [mark("rect", width="100%", height=one, class_="beyond")]
        for text, ratio in rows:
            y = self.height(ratio)
            marks += [horizontal(y, "grid"), label(text, -8, y + 4, "end")]
        bound = label("bound", "100%", one - 5, "end", "strong")
        return [*marks, horizontal(one, "bound"), bound]


def percent(part: float) -> str:
    """Return a part of the width as an SVG length."""
    return f"{100 * part:.6g}%"


def round_step(least: float) -> int:
    """Return the first of 1, 2, 5, 10, 20, ... that is not below `least`."""
    power = 1
    while True:
        for step in (power, 2 * power, 5 * power):
            if step >= least:
                return step
        power *= 10


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
    """Return a position on an axis as one word that no line break parts."""
    return f"{axis}\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{index}"


def exceeds(ratio: float) -> bool:
    """Return True for an error that no correct kernel can have; NaN is one."""
    return not ratio <= 1


def worst(ratios: Iterable[float]) -> float:
    """Return the largest ratio; NaN is worse than infinity."""
    return max(ratios, key=_badness)


def worst_at(ratios: Sequence[float]) -> int:
    """Return the first position of the largest ratio."""
    return max(range(len(ratios)), key=lambda i: _badness(ratios[i]))


def _badness(ratio: float) -> tuple[bool, float]:
    return (True, 0.0) if math.isnan(ratio) else (False, ratio)
