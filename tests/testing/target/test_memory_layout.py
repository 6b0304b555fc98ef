"""Wherever an input lies in memory it is the same input, and its surroundings tell."""

import numpy as np
import pytest

from linkern.testing.target.memory_layout import (
    GUARD,
    STYLES,
    byte_offset,
    place,
    with_room,
)

SHAPES = [(2, 3, 5, 4), (3, 5, 4), (5, 4), (1, 1, 1, 1), (2, 3, 0, 4)]
# What lies around the others belongs to nobody in particular.
GUARDED = {"offset": 2 * GUARD + 3, "sliced": None, "padded": None}


def equal_heads(shape, dtype=np.float32):
    x = np.random.default_rng(0).normal(size=shape).astype(dtype)
    return np.repeat(x[..., :1, :, :], shape[-3], axis=-3) if x.ndim > 2 else x


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("style", STYLES)
def test_the_numbers_are_the_same(style, shape):
    for dtype in (np.float32, np.float64, np.float16):
        x = equal_heads(shape, dtype)
        placed = place(x, style)
        assert placed.view.dtype == x.dtype
        assert np.array_equal(placed.view, x)
        assert not placed.disturbed


@pytest.mark.parametrize("style", STYLES)
def test_bfloat16_too(style):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = equal_heads((2, 3, 5, 4), ml_dtypes.bfloat16)
    assert np.array_equal(place(x, style).view, x)


def test_what_each_style_is():
    x = equal_heads((2, 3, 5, 4))
    views = {style: place(x, style).view for style in STYLES}
    assert views["offset"].flags.c_contiguous
    assert views["offset"].ctypes.data % 16
    assert views["fortran"].flags.f_contiguous
    assert np.swapaxes(views["transposed"], 1, 2).flags.c_contiguous
    assert views["sliced"].strides[-1] == 2 * x.itemsize
    assert views["padded"].strides[-2:] == x.strides[-2:]
    assert not views["padded"].flags.c_contiguous
    assert views["reversed"].strides[-1] == -x.itemsize
    assert views["broadcast"].strides[1] == 0


@pytest.mark.parametrize("style", GUARDED)
def test_what_lies_around_is_not_a_number(style):
    x = equal_heads((2, 3, 5, 4))
    placed = place(x, style)
    around = np.isnan(placed.base).sum()
    assert around == placed.base.size - x.size > 0
    assert GUARDED[style] in (None, around)


@pytest.mark.parametrize("style", STYLES)
def test_a_changed_input_is_seen(style):
    placed = place(equal_heads((2, 3, 5, 4)), style)
    last = np.argwhere(~np.isnan(placed.base))[-1]
    placed.base[tuple(last)] += 1
    assert placed.disturbed


@pytest.mark.parametrize("style", GUARDED)
@pytest.mark.parametrize("at", [0, -1])
def test_a_changed_surrounding_is_seen(style, at):
    placed = place(equal_heads((2, 3, 5, 4)), style)
    guards = np.argwhere(np.isnan(placed.base.reshape(-1)))[:, 0]
    placed.base.reshape(-1)[guards[at]] = 0
    assert placed.disturbed
    assert not np.isnan(placed.view).any()


def test_another_nan_in_the_surrounding_is_seen():
    placed = place(equal_heads((5, 4)), "offset")
    placed.base[:1].view(np.int32)[...] ^= 1
    assert np.isnan(placed.base[0])
    assert placed.disturbed


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if 0 not in shape])
def test_unused_memory_lies_around_a_copy(shape):
    x = equal_heads(shape)
    copy, base = with_room(x)
    assert np.array_equal(copy, x)
    assert copy.flags.c_contiguous
    before = byte_offset(copy, base)
    after = base.nbytes - before - copy.nbytes
    assert before == after == GUARD * x.itemsize
