"""Marks of memory that nothing wrote: found again, and by no computation made."""

import numpy as np
import pytest

from linkern.testing.target.interpreted import allocations


@pytest.fixture(params=[*allocations.FILLS])
def fill(request):
    allocations.fill_with(request.param)
    yield request.param
    allocations.fill_with("nan")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("fp64", "f8"), ("fp32", "f4"), ("fp16", "f2"), ("bf16", "u2")],
)
def test_a_mark_is_found_again_and_nan_is_none(name, dtype, fill):
    x = np.array([0, 1, 2, 3], dtype)
    x[3] = np.nan if dtype != "u2" else 0x7FC0
    assert not allocations.marked(x, name).any()
    allocations.mark(x, np.array([False, True, False, False]), name)
    assert allocations.marked(x, name).tolist() == [False, True, False, False]
    if dtype != "u2":
        assert np.isnan(x[1]) == (fill == "nan")
        assert fill == "nan" or x[1] > 5e4


def test_integers_are_found_and_never_overwritten(fill):
    x = np.array([0, allocations.FILLS[fill]["int32"]], "i4")
    assert allocations.marked(x, "int32").tolist() == [False, True]
    allocations.mark(x, np.array([True, True]), "int32")
    assert x[0] == 0
    assert allocations.marked(np.zeros(2, "u1"), "uint8") is None
