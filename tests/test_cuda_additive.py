"""The plain kernels, run by the emulator: the same numbers as on NumPy, in any order."""

import numpy as np
import pytest

import linkern
from linkern._cuda.attend import attend
from tests.emulator.device import Emulator, Way

WAYS = [
    Way(),
    Way("reverse"),
    Way("shuffled", seed=3, resident=2),
    Way("ahead", seed=5, resident=3),
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.schedule)
@pytest.mark.parametrize("shape", [(1, 1, 1), (37, 5, 3), (50, 40, 50), (0, 3, 3)])
def test_linear_attention(shape, way):
    length, features, values = shape
    rng = np.random.default_rng(0)
    query, key, value = (
        rng.standard_normal((2, 2, length, d)).astype(np.float32)
        for d in (features, features, values)
    )
    before = linkern.State.zeros(features, values, like=query, batch_shape=(2, 2))
    found = attend(
        Emulator(way),
        *(query, key, value, None),
        *before,
        feature_map=linkern.elu_plus_one,
    )
    due = linkern.linear_attention(query, key, value)
    np.testing.assert_allclose(found[0], due.output, 1e-5, 1e-5)
    np.testing.assert_allclose(found[1], due.state.memory, 1e-5, 1e-5)
    np.testing.assert_allclose(found[2], due.state.normalizer, 1e-5, 1e-5)
