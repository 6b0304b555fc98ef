"""Angles on a tape: the tanh that bounds a turn, its sum over tokens, rotated channels.

A kernel may reduce its angles to one circle after every token or once, with ``2 pi`` of
its own dtype: the errors of the sums admit either. Where rounding can carry an angle
over the end of the circle, its value says nothing, its cosine and sine do.
"""

from math import pi

import numpy as np
from numpy.typing import NDArray

from linkern.oracle.balls import Ball, added, contracted
from linkern.oracle.calls import column, joined, reshaped, sliced, taken
from linkern.oracle.scan import scanned
from linkern.oracle.tape import Node, Tape

__all__ = ["hyperbolic_tangent", "reduced", "rotated", "turned"]

Real = NDArray[np.float64]
# Roundings that one function of a library is admitted.
_ULPS = 8


def hyperbolic_tangent(tape: Tape, x: Node) -> Node:
    """Return ``tanh x``, whose slope kernels take to be one less its square."""
    value = np.tanh(x.value)
    error = slope_error = None
    if tape.rounding is not None:
        few = _ULPS * tape.rounding.unit
        error = few * abs(value) + x.ball.radius + tape.rounding.tiny
        slope_error = np.full_like(value, few) + 2 * error
    result, slope = Ball(value, error), Ball(1 - value * value, slope_error)

    def pullback(cotangents: list[Ball | None]) -> list[Ball]:
        (g,) = cotangents
        assert g is not None
        return [contracted("...,...->...", g, slope, tape.rounding)]

    return tape.record([result], [x], pullback)[0]


def turned(tape: Tape, turns: Node, start: Node) -> tuple[Node, Node]:
    """Return the angles ``(..., T, P)`` after each token, and the last ones.

    Parameters
    ----------
    tape : Tape
        Where to.
    turns : Node (..., T, P)
        What each token adds.
    start : Node (..., P)
        The angles before the first.
    """
    ones = tape.constant(np.ones((turns.shape[-2], 1)))
    first = tape.linear(start, lambda y: y[..., None, :], lambda y: y[..., 0, :])
    sums, last = scanned(tape, query=ones, key=ones, value=turns, state=first)
    last = tape.linear(last, lambda y: y[..., 0, :], lambda y: y[..., None, :])
    if tape.rounding is None:
        return sums, last
    # What reductions to the circle lose: a few units of what was added, and of 2 pi.
    added_up = np.cumsum(abs(turns.value), axis=-2) + abs(start.value)[..., None, :]
    tokens = np.arange(1, turns.shape[-2] + 1)[:, None]
    lost = _ULPS * tape.rounding.unit * (added_up + 2 * pi * tokens)
    end = lost[..., -1, :] if len(tokens) else np.zeros(last.shape)
    return _widened(tape, sums, lost), _widened(tape, last, end)


def _widened(tape: Tape, x: Node, more: Real) -> Node:
    """Return the same with a larger radius."""
    ball = Ball(x.value, x.ball.radius + more)
    return tape.record([ball], [x], lambda cotangents: cotangents)[0]


def reduced(tape: Tape, angles: Node) -> Node:
    """Return angles in ``[0, 2 pi)``; anywhere on it where they are near its end."""
    value = angles.value - 2 * pi * np.floor(angles.value / (2 * pi))
    error = angles.ball.error
    if error is not None:
        inside = (value > error) & (value + error < 2 * pi)
        still = (angles.value == 0) & (error == 0)
        error = np.where(inside | still, error, error + 2 * pi)
    ball = Ball(value, error)
    return tape.record([ball], [angles], lambda cotangents: cotangents)[0]


def rotated(tape: Tape, x: Node, angles: Node) -> Node:
    """Rotate channels 0 and 1 of rows by the first angle, 2 and 3 by the second."""
    pairs, size = angles.shape[-1], x.shape[-1]
    cosine, sine = _cosine_and_sine(tape, angles)
    even, odd = (taken(tape, x, range(i, 2 * pairs, 2)) for i in (0, 1))

    def times(left: Node, right: Node) -> Node:
        return tape.contract("...,...->...", left, right)

    minus = tape.contract("...,...->...", sine, tape.constant(-1.0), prepared=True)
    first = tape.add(times(even, cosine), times(odd, minus))
    second = tape.add(times(even, sine), times(odd, cosine))
    both = joined(tape, column(tape, first), column(tape, second))
    flat = reshaped(tape, both, (*both.shape[:-2], 2 * pairs))
    if 2 * pairs == size:
        return flat
    rest = sliced(tape, x, 2 * pairs, size)
    lead = flat.shape[:-1]
    wide = tape.contract(
        "...,...->...", rest, tape.constant(np.ones((*lead, 1))), prepared=True
    )
    return joined(tape, flat, wide)


def _cosine_and_sine(tape: Tape, angles: Node) -> tuple[Node, Node]:
    cosine, sine = np.cos(angles.value), np.sin(angles.value)
    error = None
    if tape.rounding is not None:
        few = _ULPS * tape.rounding.unit
        # However wrong an angle is, neither leaves the circle.
        error = np.fmin(angles.ball.radius + few, 2 + few)
    results = [Ball(cosine, error), Ball(sine, error)]

    def pullback(cotangents: list[Ball | None]) -> list[Ball]:
        across = Ball(-sine, error), Ball(cosine, error)
        parts = [
            contracted("...,...->...", g, slope, tape.rounding)
            for g, slope in zip(cotangents, across, strict=True)
            if g is not None
        ]
        total = parts[0]
        for part in parts[1:]:
            total = added(total, part, tape.rounding)
        return [total]

    nodes = tape.record(results, [angles], pullback)
    return nodes[0], nodes[1]
