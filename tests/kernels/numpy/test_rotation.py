"""Rotation by complex numbers equals that by cosines and sines, in any layout."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkern.kernels.numpy.rotation import rotated

LAYOUTS = {
    "C": lambda x: x,
    "F": np.asfortranarray,
    "every second channel": lambda x: np.repeat(x, 2, -1)[..., ::2],
    "backwards": lambda x: x[..., ::-1].copy()[..., ::-1],
    "broadcast": lambda x: np.broadcast_to(x[:, :1], x.shape),
}


def law_pairs_rotate(function, x, steps):
    turn = np.full((2, 1, steps.shape[-1]), 0.5, steps.dtype)
    angle = turn + np.cumsum(steps, axis=-2)
    cosine, sine = np.cos(angle), np.sin(angle)
    size = 2 * angle.shape[-1]
    even, odd = x[..., :size:2], x[..., 1:size:2]
    expected = x.copy()
    expected[..., :size:2] = even * cosine - odd * sine
    expected[..., 1:size:2] = even * sine + odd * cosine
    before = x.copy()
    angles, (first, second) = function(turn, steps, [x[..., None, :], -x[..., None, :]])
    tiny = 64 * np.finfo(x.dtype).eps
    np.testing.assert_allclose(angles, angle, rtol=tiny, atol=tiny)
    for result, sign in ((first, 1), (second, -1)):
        np.testing.assert_allclose(
            sign * result[..., 0, :], expected, rtol=tiny, atol=tiny
        )
        assert result.dtype == x.dtype
    np.testing.assert_array_equal(x, before)


@given(
    *(st.integers(0, 5), st.integers(0, 3), st.integers(0, 3)),
    *(st.sampled_from(sorted(LAYOUTS)), st.sampled_from(["float32", "float64"])),
)
def test_pairs_rotate(length, pairs, others, layout, dtype):
    rng = np.random.default_rng(length)
    x = rng.uniform(-1, 1, size=(2, length, 2 * pairs + others)).astype(dtype)
    steps = rng.uniform(-3, 3, size=(2, length, pairs)).astype(dtype)
    law_pairs_rotate(rotated, LAYOUTS[layout](x), steps)


def backwards(turn, steps, rows):
    return rotated(turn, steps, rotated(turn, -2 * steps, rows)[1])


def by_steps_alone(turn, steps, rows):
    return steps, rotated(0 * turn, steps, rows)[1]


def without_the_other_channels(turn, steps, rows):
    angles, results = rotated(turn, steps, rows)
    for x in results:
        x[..., 2 * steps.shape[-1] :] = 0
    return angles, results


def in_place(turn, steps, rows):
    angles, results = rotated(turn, steps, rows)
    rows[0][...] = results[0]
    return angles, results


@pytest.mark.parametrize(
    "wrong", [backwards, by_steps_alone, without_the_other_channels, in_place]
)
def test_other_rotations_are_caught(wrong):
    x = np.arange(1.0, 21.0).reshape(2, 2, 5) / 10
    with pytest.raises(AssertionError):
        law_pairs_rotate(wrong, x, np.ones((2, 2, 2)))
