"""No bound on linear attention is looser than it was when it was recorded."""

import numpy as np

from tests.oracle import corpus

# Between processors, since the last bits of a product are those of its BLAS kernel.
LARGEST = 1.05
# Of a logarithm in float32.
STORED = 1e-4


def test_no_bound_is_looser_than_the_recorded_one():
    found = corpus.summaries()
    ratios = []
    with np.load(corpus.RECORD) as recorded:
        assert set(found) == set(recorded)
        for name, old in recorded.items():
            new = found[name]
            assert np.array_equal(np.isnan(new), np.isnan(old)), name
            entries, counts = new[:, :4], new[:, -1]
            was_finite = old[:, :4] < np.inf
            assert (entries[was_finite] < np.inf).all(), name
            assert not (counts > old[:, -1] + STORED).any(), name
            known = np.isfinite(old[:, :-1])
            with np.errstate(invalid="ignore"):
                ratio = np.exp2(np.float64(new[:, :-1]) - old[:, :-1])[known]
            # Sums may grow by entries that were infinite.
            fewer = np.broadcast_to((counts < old[:, -1])[:, None], known.shape)[known]
            assert (ratio[~fewer] < LARGEST).all(), name
            ratios.append(ratio)
    assert np.median(np.concatenate(ratios)) <= 1 + STORED
