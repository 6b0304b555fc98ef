"""PTX wrappers and kernels on a GPU, tested like those in the emulator.

Errors are bounded tightly there; here results are only compared with NumPy.
"""

import numpy as np
import pytest

from linkern import feature_maps
from linkern.bench.reference import ALLOWED
from linkern.kernels.cuda.backward import pullback
from linkern.kernels.cuda.forward import attend
from linkern.kernels.cuda.launch import CuPyDevice
from linkern.kernels.numpy.backward import pullback as on_numpy
from tests.kernels.cuda.emulator.device import Emulator
from tests.kernels.cuda.emulator.wrappers import LAWS, Bench, truncates
from tests.kernels.cuda.problems import DTYPES, Kind, cast_inputs, expected
from tests.kernels.cuda.test_chunk_bwd_simt import rounded

NEAR = {**ALLOWED, "float64": 2.0**-40}
DIMS = ((1, 1), (33, 40), (64, 64), (128, 96), (256, 64))


@pytest.fixture
def bench():
    import cupy

    return Bench(CuPyDevice(0), cupy.asarray, cupy.asnumpy)


@pytest.mark.gpu
@pytest.mark.parametrize("law", LAWS)
def test_wrappers_do_what_the_manual_says(bench, law):
    LAWS[law](bench)


@pytest.mark.gpu
def test_wrappers_round_sums_in_one_of_two_ways(bench):
    """The result is printed for the report of a run."""
    print("sums of tensor cores are", "truncated" if truncates(bench) else "rounded")


def law_results_of_numpy(bench, kind, dims):
    case = kind.problem(length=201, dims=dims, batch=(2, 3))
    inputs = [None if x is None else bench.to(x) for x in cast_inputs(kind, case)]
    options = {"feature_map": getattr(feature_maps, case.map), "scale": case.scale}
    results = attend(bench.device, *inputs, **options)
    for x, exact in zip(results, expected(case), strict=True):
        assert (x is None) == (exact is None)
        if exact is not None:
            wide = np.asarray(bench.back(x), np.float64)
            assert np.max(abs(wide - exact)) <= NEAR[kind.dtype] * np.max(abs(exact))


def law_gradients_of_numpy(bench, kind, dims):
    case = kind.problem(length=201, dims=dims, batch=(2, 3))
    narrow, wide = rounded(case, DTYPES[kind.dtype])
    inputs = [None if x is None else bench.to(x) for x in narrow.arrays()]
    options = {"feature_map": getattr(feature_maps, case.map), "scale": case.scale}
    results = pullback(bench.device, *inputs, **options)
    for x, exact in zip(
        results, on_numpy(*wide.arrays(), **wide.options()), strict=True
    ):
        assert (x is None) == (exact is None)
        if exact is not None:
            error = np.asarray(bench.back(x), np.float64) - exact
            assert np.linalg.norm(error) <= NEAR[kind.dtype] * np.linalg.norm(exact)


def kind_of(dtype, normalize, decays):
    return Kind(dtype, "elu_plus_one" if normalize else "identity", normalize, decays)


@pytest.mark.gpu
@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("decays", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("dtype", NEAR)
def test_numbers_are_those_of_numpy(bench, dtype, normalize, decays, dims):
    law_results_of_numpy(bench, kind_of(dtype, normalize, decays), dims)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "dims", DIMS[1:]
)  # of one feature, gradients cancel with the weights
@pytest.mark.parametrize("decays", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("dtype", NEAR)
def test_gradients_are_those_of_numpy(bench, dtype, normalize, decays, dims):
    law_gradients_of_numpy(bench, kind_of(dtype, normalize, decays), dims)


@pytest.mark.parametrize("law", [law_results_of_numpy, law_gradients_of_numpy])
def test_the_emulator_passes_and_wrong_numbers_do_not(law):
    kind = kind_of("float32", True, False)
    law(Bench(Emulator()), kind, (3, 5))
    shifted = Bench(Emulator(), back=lambda x: np.roll(x, 1, axis=-1))
    with pytest.raises(AssertionError):
        law(shifted, kind, (3, 5))
