"""The kernel of the demo is what is said of it: right on one chunk, wrong on two."""

import numpy as np
import pytest

import linkern
from linkern.testing.kernels import faulty


@pytest.mark.parametrize(("length", "right"), [(1, True), (64, True), (65, False)])
def test_one_chunk_does_not_show_the_fault(length, right):
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(3, 2, 2, length, 8))
    expected = linkern.linear_attention(*inputs).output
    assert np.allclose(faulty.attention(*inputs), expected, rtol=1e-9) == right
