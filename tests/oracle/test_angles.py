"""Bounds of angles: float32 arithmetic keeps them, float16 does not."""

import numpy as np
import pytest

from linkern.oracle.angles import hyperbolic_tangent, reduced, rotated, turned
from linkern.oracle.balls import Rounding
from linkern.oracle.bounds import Precisions
from linkern.oracle.tape import Tape

TOKENS, PAIRS = 60, 3
FLOAT32 = Rounding(Precisions("float32"))


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def drawn(rng):
    turns = rng.normal(size=(TOKENS, PAIRS)).astype(np.float16).astype(np.float64)
    start = rng.uniform(0, 6, PAIRS).astype(np.float16).astype(np.float64)
    rows = rng.normal(size=(TOKENS, 2 * PAIRS + 1)).astype(np.float16)
    return turns, start, rows.astype(np.float64)


def each_time(turns, start, dtype):
    """Angles that are reduced after every token, in an arithmetic."""
    circle, angle, angles = dtype(2 * np.pi), start.astype(dtype), []
    for turn in turns.astype(dtype):
        angle = angle + turn
        angle = angle - circle * np.floor(angle / circle)
        angles.append(angle)
    return np.stack(angles)


def once(turns, start, dtype):
    """Sums of turns, which leave the circle."""
    return np.cumsum(np.concatenate([start[None], turns]).astype(dtype), axis=0)[1:]


def rotated_by(angles, rows, dtype):
    cosine, sine = np.cos(angles), np.sin(angles)
    x = rows.astype(dtype)
    even, odd = x[:, 0:-1:2], x[:, 1:-1:2]
    pairs = np.stack([even * cosine - odd * sine, even * sine + odd * cosine], -1)
    return np.concatenate([pairs.reshape(len(x), -1), x[:, -1:]], axis=1)


@pytest.mark.parametrize("how", [each_time, once])
def test_rotated_rows_are_within_their_bounds(rng, how):
    turns, start, rows = drawn(rng)
    tape = Tape(FLOAT32)
    angles, _ = turned(tape, tape.constant(turns), tape.constant(start))
    ball = rotated(tape, tape.constant(rows), angles).ball
    apart = {
        dtype: abs(rotated_by(how(turns, start, dtype), rows, dtype) - ball.value)
        for dtype in (np.float32, np.float16)
    }
    assert (apart[np.float32] <= ball.radius).all()
    assert (apart[np.float16] > ball.radius).mean() > 0.5


def test_an_angle_near_the_end_of_the_circle_may_be_anywhere_on_it():
    tape = Tape(FLOAT32)
    ends = np.array([0.0, 1.0, 2 * np.pi, 4 * np.pi - 1e-9, -1e-9])
    angles, last = turned(tape, tape.constant(np.zeros((1, 5))), tape.constant(ends))
    ball = reduced(tape, last).ball
    np.testing.assert_allclose(ball.value[1], 1.0)
    assert ball.radius[1] < 1e-4
    assert (ball.radius[2:] >= 2 * np.pi).all()
    assert angles.shape == (1, 5)


def test_the_slope_of_a_tangent_is_within_its_bound(rng):
    x = rng.normal(size=(200,)).astype(np.float32)
    tape = Tape(FLOAT32)
    node = tape.constant(x.astype(np.float64))
    result = hyperbolic_tangent(tape, node)
    (ball,) = tape.gradients([(result, tape.constant(np.ones(200)).ball)], [node])
    for dtype, right in ((np.float32, True), (np.float16, False)):
        tangent = np.tanh(x.astype(dtype))
        apart = abs((1 - tangent * tangent) - ball.value)
        assert (apart <= ball.radius).all() == right
