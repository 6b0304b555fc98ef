"""Bits of bfloat16: as `ml_dtypes` has them."""

import ml_dtypes
import numpy as np

from linkern.testing.target.interpreted.bfloat16 import narrowed, widened


def test_every_number_is_widened_exactly():
    bits = np.arange(2**16, dtype=np.uint16)
    expected = bits.view(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(widened(bits), expected)


def test_a_number_is_rounded_to_the_nearest_and_to_even():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2**32, 100_000, dtype=np.uint32)
    ties = (x & np.uint32(0xFFFF0000)) | np.uint32(0x8000)
    x = np.concatenate([x, ties]).view(np.float32)
    x = np.concatenate([x, np.float32([np.inf, -np.inf, 0.0, -0.0, 3.4e38, 1.9999])])
    with np.errstate(all="ignore"):
        expected = x.astype(ml_dtypes.bfloat16)
    numbers = ~np.isnan(x)
    np.testing.assert_array_equal(
        narrowed(x)[numbers], expected.view(np.uint16)[numbers]
    )
    assert np.isnan(widened(narrowed(x))[~numbers]).all()
