"""Feature maps: accuracy, propagation of NaN, agreement with the oracle's own."""

import numpy as np
import pytest

import linkern
from linkern import feature_maps, oracle


@pytest.mark.parametrize("name", sorted(feature_maps.__all__))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_maps_agree_with_the_oracle_within_its_error_model(lib, name, dtype):
    x = np.concatenate([np.linspace(-80, 60, 1001), [0.0, -0.0, 1e-30]]).astype(dtype)
    got = lib.numpy(getattr(feature_maps, name)(lib.array(x))).astype(np.float64)
    known = oracle.FEATURE_MAPS[name]
    error = known.error(x.astype(np.float64), oracle.unit_roundoff(dtype))
    assert (abs(got - known.value(x.astype(np.float64))) <= error).all()


def test_elu_plus_one_keeps_relative_accuracy_where_the_textbook_has_none():
    x = np.linspace(-80, -10, 500, dtype=np.float32)
    exact = np.exp(x.astype(np.float64))
    assert (abs(linkern.elu_plus_one(x) - exact) <= 8 * 2.0**-24 * exact).all()
    assert ((np.expm1(x) + 1)[x < -18] == 0).all()


@pytest.mark.parametrize("name", sorted(feature_maps.__all__))
def test_nan_propagates(lib, name):
    x = lib.array(np.asarray([np.nan, 1.0]))
    assert np.isnan(lib.numpy(getattr(feature_maps, name)(x))).tolist() == [True, False]


def test_large_inputs_do_not_overflow_on_the_unused_branch():
    with np.errstate(all="raise"):
        assert linkern.elu_plus_one(np.float32([1e30])) == np.float32(1e30)
