"""Functions of `linkern.array` that NumPy has a shorter way for."""

import sys
from types import SimpleNamespace

import array_api_strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkern import array
from linkern.array import is_array, mT, namespace, outer, plain_numpy
from linkern.autodiff.tape import Traced

SPECIAL = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-310, -1e-45, 1e30)


@given(
    st.integers(0, 2**16).map(np.random.default_rng),
    st.sampled_from(["float32", "float64"]),
    st.tuples(st.sampled_from([1, 2, 5, 64]), st.sampled_from([1, 3, 16, 65])),
    st.sampled_from([(), (3,), (2, 3)]),
)
def test_an_outer_product_has_the_bits_of_a_matrix_product(rng, dtype, dims, batch):
    rows = []
    for dim in dims:
        x = rng.normal(size=(*batch, 1, dim))
        special = rng.choice(SPECIAL, size=x.shape)
        with np.errstate(over="ignore", under="ignore"):
            rows.append(np.where(rng.random(x.shape) < 0.2, special, x).astype(dtype))
    with np.errstate(all="ignore"):
        result, expected = outer(*rows), mT(rows[0]) @ rows[1]
    assert result.dtype == expected.dtype
    assert result.shape == expected.shape
    number = ~np.isnan(expected)
    assert (np.isnan(result) == ~number).all()
    assert result[number].tobytes() == expected[number].tobytes()


def test_arrays_of_others_and_traced_ones_are_not_plain():
    x = np.ones((1, 2))
    assert plain_numpy(x, x)
    assert not plain_numpy(x, Traced(x))
    assert not plain_numpy(x, x.view(np.recarray))
    assert not plain_numpy(array_api_strict.asarray(x))


@pytest.mark.parametrize("kind", [np.matrix, np.ma.MaskedArray])
def test_matrices_and_masked_arrays_never_become_arrays(kind):
    x = np.ones((2, 2)).view(kind)
    for _ in range(2):  # a type that has passed once is known from then on
        with pytest.raises(TypeError, match="is not a supported array type"):
            namespace(x)
        assert not is_array(x)
    assert is_array(np.ones((2, 2)).view(np.memmap))


@pytest.mark.parametrize("package", ["cupy", "torch"])
@pytest.mark.parametrize("recorded", [True, False])
def test_nothing_is_known_of_what_a_graph_records(package, recorded, monkeypatch):
    stream = SimpleNamespace(is_capturing=lambda: recorded)
    cuda = SimpleNamespace(
        get_current_stream=lambda: stream,
        is_current_stream_capturing=lambda: recorded,
    )
    monkeypatch.setitem(sys.modules, package, SimpleNamespace(cuda=cuda))
    on_device = type("Array", (), {"__module__": f"{package}.x", "is_cuda": True})
    assert array.is_captured(on_device()) is recorded
    on_cpu = type("Array", (), {"__module__": "torch", "is_cuda": False})
    assert not array.is_captured(on_cpu())
    assert not array.is_captured(np.ones(2))
