"""Offsets of packed sequences are taken from any sequence and any array library."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import linkern
from tests.operators.problems import close

X = np.random.default_rng(0).normal(size=(2, 9, 3))
OFFSETS = [0, 2, 2, 9]
EXPECTED = linkern.gla(X, X, X, cu_seqlens=OFFSETS)
DTYPES = ("int8", "int16", "int32", "int64", "uint8")
UNKNOWN = "`cu_seqlens` must be a sequence of integers that are known during the call"


def is_expected(result):
    np.testing.assert_array_equal(result.output, EXPECTED.output)
    np.testing.assert_array_equal(result.state.memory, EXPECTED.state.memory)


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_any_library_and_integer_dtype(lib, dtype):
    offsets = lib.array(np.asarray(OFFSETS, dtype))
    is_expected(linkern.gla(X, X, X, cu_seqlens=offsets))
    result = linkern.gla(*[lib.array(X)] * 3, cu_seqlens=offsets)
    close(lib.numpy(result.output), EXPECTED.output)
    close(lib.numpy(result.state.memory), EXPECTED.state.memory)


@pytest.mark.parametrize("form", [tuple, iter, lambda x: [np.int32(i) for i in x]])
def test_sequences_of_integers(form):
    is_expected(linkern.gla(X, X, X, cu_seqlens=form(OFFSETS)))


def test_a_range_is_a_sequence():
    result = linkern.gla(X, X, X, cu_seqlens=range(0, 10, 3))
    assert result.state.memory.shape == (3, 2, 3, 3)


def test_offsets_may_be_on_another_device():
    strict = pytest.importorskip("array_api_strict")
    elsewhere = strict.asarray(OFFSETS, device=strict.Device("device1"))
    is_expected(linkern.gla(X, X, X, cu_seqlens=elsewhere))


def test_gradients_leave_offsets_alone(lib):
    inputs = [lib.array(X)] * 3
    offsets = lib.array(np.asarray(OFFSETS))
    result, pullback = linkern.vjp(linkern.gla, *inputs, cu_seqlens=offsets)
    assert "cu_seqlens" not in pullback(result.output)


@given(st.lists(st.integers(-1, 10), max_size=5))
def test_offsets_are_taken_or_refused(offsets):
    """Offsets begin with 0, do not decrease and stay within the length."""
    fits = offsets[:1] == [0] and offsets == sorted(offsets) and offsets[-1] <= 9
    for listed in (offsets, np.asarray(offsets, int)):
        try:
            linkern.gla(X, X, X, cu_seqlens=listed)
        except ValueError:
            assert not fits
        else:
            assert fits


@pytest.mark.parametrize(
    ("offsets", "error", "sentence"),
    [
        (np.asarray([0.0, 9.0]), TypeError, "must have an integer dtype, got float64"),
        (np.asarray([False, True]), TypeError, "must have an integer dtype, got bool"),
        ([False, True], TypeError, UNKNOWN),
        ([0, 2.5], TypeError, UNKNOWN),
        ([[0, 2], [2, 9]], TypeError, UNKNOWN),
        (9, TypeError, UNKNOWN),
        ("09", TypeError, UNKNOWN),
        (np.asarray([[0, 9]]), ValueError, "must have one axis, got (1, 2)"),
        ([], ValueError, "must begin with 0, got []"),
        ([0, 5, 3], ValueError, "must not decrease, got [0, 5, 3]"),
        ([0, 10], ValueError, "must not exceed the length, 9, got [0, 10]"),
    ],
)
def test_what_is_no_offsets_is_refused(offsets, error, sentence):
    with pytest.raises(error, match=re.escape(sentence)):
        linkern.gla(X, X, X, cu_seqlens=offsets)


def test_arrays_without_values_are_refused(torch):
    offsets = torch.zeros(3, dtype=torch.int64, device="meta")
    with pytest.raises(TypeError, match=UNKNOWN):
        linkern.gla(X, X, X, cu_seqlens=offsets)


def test_traced_offsets_are_refused(jax):
    x = jax.numpy.asarray(X)
    traced = jax.jit(lambda offsets: linkern.gla(x, x, x, cu_seqlens=offsets).output)
    with pytest.raises(TypeError, match=UNKNOWN):
        traced(jax.numpy.asarray(OFFSETS))
