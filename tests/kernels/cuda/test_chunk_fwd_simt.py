"""The forward without tensor cores in the emulator: the results of NumPy."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkern import feature_maps
from linkern.kernels.cuda.forward import attend as attend_with_any_kernel
from linkern.kernels.cuda.plan import chunk_fwd
from tests.kernels.cuda.emulator.device import Emulator
from tests.kernels.cuda.problems import (
    BATCHES,
    WAYS,
    Kind,
    call,
    cast_inputs,
    close,
    expected,
    strided,
)

# Few kernels that together have all template arguments.
KINDS = (
    Kind("float32", "elu_plus_one", True, False),
    Kind("float64", "identity", False, True),
    Kind("bfloat16", "exp", True, True),
    Kind("float16", "relu", False, False),
)
LENGTHS = (0, 1, 2, 15, 16, 17, 33, 50)
DIMS = ((1, 1), (3, 5), (32, 32), (33, 40), (70, 3), (0, 2), (2, 0))


def attend(*arrays, **options):
    """Compute without tensor cores even if they could be used."""
    with mock.patch.object(chunk_fwd, "fits", return_value=False):
        return attend_with_any_kernel(*arrays, **options)


def law_results_of_numpy(device, kind, seed, length, dims, batch):
    case = kind.problem(seed, length=length, dims=dims, batch=batch)
    close(call(attend, device, kind, case), expected(case))


def problem_of(kind, features=40):
    """A call that runs all loops at least twice, and ends inside a chunk."""
    dims = (features, 36)
    return lambda device: law_results_of_numpy(device, kind, 1, 37, dims, (1,))


PROBLEMS = {kind.dtype: problem_of(kind) for kind in KINDS}
PROBLEMS["no features"] = problem_of(KINDS[2], features=0)


@settings(max_examples=40)
@given(
    st.sampled_from(WAYS),
    st.sampled_from(KINDS),
    st.integers(0, 99),
    st.sampled_from(LENGTHS),
    st.sampled_from(DIMS),
    st.sampled_from(BATCHES),
)
def test_results_are_those_of_numpy(way, kind, seed, length, dims, batch):
    law_results_of_numpy(Emulator(way), kind, seed, length, dims, batch)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.dtype)
def test_results_do_not_depend_on_the_order_of_threads(kind):
    case = kind.problem(length=37, dims=(40, 36))
    results = [call(attend, Emulator(way), kind, case) for way in WAYS]
    for arrays in zip(*results, strict=True):
        assert len({None if x is None else x.tobytes() for x in arrays}) == 1


@pytest.mark.parametrize("how", ["tokens first", "backwards", "every other entry"])
def test_any_strides(how):
    kind = KINDS[0]
    case = kind.problem(length=20, dims=(6, 8), batch=(2, 3))
    arrays = [strided(x, how) for x in cast_inputs(kind, case)]
    assert any(x.strides != x.copy().strides for x in arrays[:3])
    feature_map = getattr(feature_maps, kind.map)
    close(attend(Emulator(), *arrays, feature_map=feature_map), expected(case))


def test_rows_that_all_heads_share():
    kind = KINDS[0]
    case = kind.problem(length=20, dims=(6, 8), batch=(2, 3))
    arrays = cast_inputs(kind, case)
    arrays[1] = np.broadcast_to(arrays[1][:, :1], arrays[1].shape)
    inputs = list(case.inputs)
    inputs[1] = arrays[1].astype(np.float64)
    case.inputs = tuple(inputs)
    feature_map = getattr(feature_maps, kind.map)
    close(attend(Emulator(), *arrays, feature_map=feature_map), expected(case))


def test_inputs_stay_as_they_are():
    kind = KINDS[1]
    case = kind.problem(length=20)
    arrays = cast_inputs(kind, case)
    before = [None if x is None else x.copy() for x in arrays]
    attend(Emulator(), *arrays, scale=0.25)
    for x, y in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(x, y)
