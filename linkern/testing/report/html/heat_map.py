"""The error of every entry of one head, as shades: where a kernel went wrong.

Cells beyond the bound are outlined and carry their number, or a stroke where numbers
have no room; shades get darker (on a dark page: lighter) as errors grow, so that they
keep their order in grey.
"""

import math
from collections.abc import Sequence

from linkern.testing.report.html.drawing import (
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

__all__ = ["heat_map"]

# More cells than these are not told apart: neighbours are merged, the worst is shown.
_MOST_COLUMNS = 64
_MOST_ROWS = 32
# Wider cells than these have room for a number, on a wide screen and on every screen.
_MOST_NUMBERS = 12
_MOST_NUMBERS_ON_PHONES = 6
_SHADES = (  # and their upper ends
    (0.0, "zero"),
    (0.01, "low"),
    (0.1, "middle"),
    (1.0, "near"),
    (10.0, "over"),
    (1000.0, "far"),
    (math.inf, "lost"),
)


def heat_map(name: str, errors: Sequence[Sequence[float]]) -> Element:
    """Draw the error of every entry of one head of the smallest input.

    Parameters
    ----------
    name : str
        Distinguishes the chart from the others of its page.
    errors : sequence of sequence of float
        Errors as multiples of their bounds, ``(T, V)``; not empty.
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
    step = round_step(18 / side)
    marks = [
        *_cells(cells, side),
        *ticks_below([i * across for i in range(columns)], rows * side),
        *(
            label(str(i * down), -8, (i + 0.5) * side + 4, "end")
            for i in range(0, rows, step)
        ),
        label("v (channel)", -40, -14),
        axis_title("t (position)", rows * side),
    ]
    sentence = _map_sentence([e for row in errors for e in row], channels)
    if across * down > 1:
        sentence += f" Each cell is the largest of {across} by {down} entries (t by v)."
    title = "Error / bound in the smallest input, entry by entry"
    chart = picture(
        name, title, sentence, marks, rows * side, widest=max(columns, 2) * 56
    )
    return figure(chart, _legend())


def _map_sentence(entries: Sequence[float], channels: int) -> str:
    t, v = divmod(worst_at(entries), channels)
    beyond = sum(map(exceeds, entries))
    return (
        f"{counted(len(entries), 'entry', 'entries')} of this head, {beyond} beyond "
        f"the bound. The largest error / bound is {ratio_text(worst(entries))}, at "
        f"{place('t', t)}, {place('v', v)}."
    )


def _cells(cells: Sequence[Sequence[float]], side: int) -> list[Element]:
    columns = len(cells[0])
    # What exceeds the bound is drawn last, so that its outline lies on top.
    drawn: tuple[list[Element], list[Element]] = ([], [])
    for v, row in enumerate(cells):
        for t, ratio in enumerate(row):
            beyond = exceeds(ratio)
            box = {
                "x": percent(t / columns),
                "y": v * side,
                "width": percent(1 / columns),
                "height": side,
            }
            shade = f"cell {_shade(ratio)}{' outside' if beyond else ''}"
            drawn[beyond].append(element("rect", class_=shade, **box))
            if columns <= _MOST_NUMBERS:
                roomy = columns > _MOST_NUMBERS_ON_PHONES
                class_ = f"number on-{_shade(ratio)}{' roomy' if roomy else ''}"
                x, y = percent((t + 0.5) / columns), (v + 0.5) * side + 4
                drawn[beyond].append(label(_short(ratio), x, y, "middle", class_))
            elif beyond:
                drawn[beyond].append(_stroke_through(t, v, columns, side))
    return [*drawn[False], *drawn[True]]


def _short(ratio: float) -> str:
    """Return a ratio in the five characters that a cell has room for."""
    if 0 < ratio < 0.01:
        return "<0.01"
    if 1e4 <= ratio < math.inf:
        mantissa, _, exponent = f"{ratio:.0e}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{ratio:.2g}" if ratio < 1 else ratio_text(ratio)


def _stroke_through(t: int, v: int, columns: int, side: int) -> Element:
    return element(
        "line",
        x1=percent(t / columns),
        x2=percent((t + 1) / columns),
        y1=(v + 1) * side,
        y2=v * side,
        class_="mark",
    )


def _shade(ratio: float) -> str:
    return next((name for end, name in _SHADES if ratio <= end), "lost")


def _legend() -> Element:
    """Return what the shades mean, lightest first."""
    items = []
    for end, name in _SHADES:
        beyond = end > 1
        swatch = element(
            "svg",
            element(
                "rect",
                width="100%",
                height="100%",
                class_=f"cell {name}{' outside' if beyond else ''}",
            ),
            element("line", x2="100%", y1="100%", class_="mark") if beyond else None,
            class_="swatch",
            aria_hidden="true",
        )
        words = "0" if end == 0 else f"≤ {ratio_text(end)}"
        items.append(
            element("li", swatch, words if end < math.inf else "more, ∞ or NaN")
        )
    items.append(element("li", "framed: beyond the bound"))
    return element("ul", *items, class_="legend", aria_label="Shades")
