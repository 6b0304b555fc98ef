"""Scaling of time with length: sums over tokens, exponents, crossovers."""

import math
from collections.abc import Sequence

import numpy as np

__all__ = [
    "checkpoints",
    "crossover",
    "exponent",
    "integral",
    "is_whole",
    "overtaken",
    "prefixes",
]

Span = tuple[int, int]


def checkpoints(length: int, first: int = 16) -> tuple[Span, ...]:
    """Return spans that together are all tokens and double in length.

    Examples
    --------
    >>> checkpoints(50)
    ((0, 16), (16, 32), (32, 50))
    """
    ends = []
    end = first
    while end < length:
        ends.append(end)
        end *= 2
    return tuple(zip((0, *ends), (*ends, length), strict=True))


def prefixes(length: int, count: int) -> tuple[Span, ...]:
    """Return single tokens: all of them, or `count` that are evenly spaced.

    Examples
    --------
    >>> prefixes(9, 3)
    ((0, 1), (4, 5), (8, 9))
    """
    if count >= length:
        return tuple((i, i + 1) for i in range(length))
    chosen = np.unique(np.rint(np.linspace(0, length - 1, count)))
    return tuple((int(i), int(i) + 1) for i in chosen)


def integral(spans: Sequence[Span], seconds: Sequence[float], length: int) -> float:
    """Return the seconds for all tokens from the seconds for some spans, in order.

    The sum, if the spans leave nothing out; else the cost of each token lies on the
    straight line between its neighbours. For a cost that grows like the square of the
    position, `m` evenly spaced single tokens give ``1 / (2 (m - 1)^2)`` too much.

    Examples
    --------
    >>> integral([(0, 1), (4, 5)], [1.0, 5.0], 5)
    15.0
    """
    if is_whole(spans, length):
        return math.fsum(seconds)
    starts, stops = np.asarray(spans).T
    each = np.asarray(seconds) / (stops - starts)
    return math.fsum(np.interp(np.arange(length), (starts + stops - 1) / 2, each))


def is_whole(spans: Sequence[Span], length: int) -> bool:
    """Return True if the spans follow one another from 0 to the length."""
    edges = [stop for _, stop in spans]
    return [start for start, _ in spans] == [0, *edges[:-1]] and edges[-1] == length


def exponent(positions: Sequence[float], seconds: Sequence[float]) -> float | None:
    """Return `p` of the best fit ``seconds ~ positions^p``; None below three points.

    Examples
    --------
    >>> round(exponent([1, 10, 100], [2, 200, 20000]), 12)
    2.0
    """
    if len(positions) < 3:
        return None
    x, y = np.log(positions), np.log(seconds)
    return float((x - x.mean()) @ (y - y.mean()) / ((x - x.mean()) ** 2).sum())


def crossover(
    spans: Sequence[Span], ours: Sequence[float], theirs: Sequence[float]
) -> int | None:
    """Return the length from which on generating takes `ours` less than `theirs`.

    All are seconds of consecutive spans from 0. The length is between the ends of two
    spans on the straight line; the end of the first span if `ours` is less from the
    start; None if it is not, up to the end.

    Examples
    --------
    >>> crossover([(0, 10), (10, 20)], [2.0, 1.0], [1.0, 3.0])
    15
    """
    stops = [stop for _, stop in spans]
    ahead = np.cumsum(np.asarray(theirs) - np.asarray(ours))
    behind = np.flatnonzero(ahead <= 0)
    if behind.size == 0:
        return stops[0]
    last = int(behind[-1])
    if last + 1 == len(stops):
        return None
    part = float(-ahead[last] / (ahead[last + 1] - ahead[last]))
    return math.ceil(stops[last] + part * (stops[last + 1] - stops[last]) - 1e-9)


def overtaken(
    lengths: Sequence[int], ours: Sequence[float], theirs: Sequence[float]
) -> int | None:
    """Return the length from which on `ours` is less than `theirs`.

    It is on the straight line between two lengths, both axes logarithmic; the first
    length if `ours` is less from the start; None if it is not at the last.

    Examples
    --------
    >>> overtaken([100, 400], [2.0, 2.0], [1.0, 4.0])
    200
    """
    ahead = np.log(np.asarray(theirs, "float64") / np.asarray(ours, "float64"))
    behind = np.flatnonzero(ahead <= 0)
    if len(lengths) == 0 or (behind.size and behind[-1] + 1 == len(lengths)):
        return None
    if behind.size == 0:
        return lengths[0]
    last = int(behind[-1])
    x, y = np.log(lengths[last : last + 2]), ahead[last : last + 2]
    return round(float(np.exp(x[0] - y[0] * (x[1] - x[0]) / (y[1] - y[0]))))
