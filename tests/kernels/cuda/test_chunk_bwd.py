"""Gradients on tensor cores in the emulator: exact for integers, else bounded."""

from itertools import product
from unittest import mock

import numpy as np
import pytest

from linkern.kernels.cuda.plan import chunk_bwd
from linkern.kernels.numpy.backward import Gradients
from linkern.kernels.numpy.backward import pullback as on_numpy
from tests.kernels.cuda.emulator.device import Emulator
from tests.kernels.cuda.problems import DTYPES, WAYS
from tests.kernels.cuda.test_chunk_bwd_simt import on_device, rounded
from tests.kernels.numpy.backward_problems import Problem, problem
from tests.marks import in_turn, slow_unless

NAMES = ("bfloat16", "float16", "float32")
FLAGS = (False, True)
# Relative to the norm: for rows, which are rounded to their dtype, and for states and
# log-decays, which are sums in float32 of rounded operands.
BOUNDS = {
    "bfloat16": (2.0**-6, 2.0**-6),
    "float16": (2.0**-11, 2.0**-14),
    "float32": (2.0**-19, 2.0**-19),
}
SCALED = {"map": "identity", "normalize": False, "dims": (16, 16)}
WEIGHTS = {"dims": (40, 24)}
H200 = 227 << 10  # bytes of shared memory
# The fewest tokens that reach every branch, since sanitizers are slow.
SMALL = {
    "weights": {**WEIGHTS, "length": 70, "batch": (1,)},
    "scaled": {**SCALED, "length": 70, "batch": (1,), "scale": 0.5},
    "decays": {**WEIGHTS, "length": 70, "batch": (1,), "decays": True},
}


def random_case(seed=0, dtype="bfloat16", **options):
    return rounded(problem(np.random.default_rng(seed), **options), DTYPES[dtype])


def gradients_of(case, device=None):
    device = device or Emulator()
    results = on_device(device, case)
    assert device.launches[-1].file == "chunk_bwd"
    # ldmatrix has no bank conflicts.
    assert device.counts["matrix_passes"] == 4 * device.counts["matrix_loads"]
    return results


def whole_numbers(length, dtype, decays, seed=0):
    """Return a problem in which sums are exact until they are written."""
    rng = np.random.default_rng(seed)

    def ones(*shape):
        return rng.integers(-1, 2, shape).astype(float)

    rows, state = (2, length, 16), (2, 16, 16)
    log_decay = None
    if decays:
        # A decay of 1 or 0.
        log_decay = np.where(rng.random((2, length, 1)) < 0.03, -np.inf, 0.0)
    inputs = (ones(*rows), ones(*rows), ones(*rows), log_decay, ones(*state), None)
    chosen = {"map": "identity", "normalize": False, "scale": 1.0}
    chosen |= {"size": 64, "causal": True}
    return rounded(
        Problem(inputs=inputs, cotangents=(ones(*rows), ones(*state), None), **chosen),
        DTYPES[dtype],
    )


@pytest.mark.parametrize(
    ("length", "decays", "dtype"),
    in_turn(lambda *x: x[2] == "bfloat16", product([1, 15, 64, 200], FLAGS, NAMES)),
)
def test_whole_numbers_are_exact(length, decays, dtype):
    case, wide = whole_numbers(length, dtype, decays)
    results, expected = gradients_of(case), on_numpy(*wide.arrays(), **wide.options())
    for name, x, y in zip(Gradients._fields, results, expected, strict=True):
        if y is not None:
            np.testing.assert_array_equal(x, y.astype(x.dtype), name, strict=True)


def check(length, device=None, dtype="bfloat16", **options):
    case, wide = random_case(length=length, dtype=dtype, **options)
    results = gradients_of(case, device)
    expected = on_numpy(*wide.arrays(), **wide.options())
    for name, x, y in zip(Gradients._fields, results, expected, strict=True):
        assert (x is None) == (y is None), name
        if y is None:
            continue
        assert x.shape == y.shape, name
        bound = BOUNDS[dtype][name not in ("query", "key", "value")]
        error = np.linalg.norm(x.astype(float) - y)
        assert error <= bound * np.linalg.norm(y), (name, error / np.linalg.norm(y))


def in_short_segments(device):
    """Segments of two chunks, with fewer features and values than the tile has."""
    with mock.patch.object(chunk_bwd, "_SEGMENT_CHUNKS", 2):
        check(130, device, dims=(8, 24), batch=(1,), decays=True)


def with_split_operands(device):
    """Operands in a buffer apart from the staging buffer."""
    check(70, device, dtype="float16", dims=(16, 16), batch=(1,), decays=True)


def in_groups(device):
    """Segments of one chunk, the first two in one group."""
    segments = mock.patch.multiple(chunk_bwd, _SEGMENT_CHUNKS=1, _MIN_CHUNKS=1)
    with segments, mock.patch.object(device, "multiprocessors", 2):
        check(129, device, dims=(8, 24), batch=(1,), decays=True)


PROBLEMS = {
    "short segments": in_short_segments,
    "split operands": with_split_operands,
    "groups": in_groups,
}


@pytest.mark.parametrize(
    ("length", "decays", "dtype"),
    in_turn(lambda *x: x[2] == "bfloat16", product([63, 130], FLAGS, NAMES)),
)
def test_weights(length, decays, dtype):
    check(length, dtype=dtype, decays=decays, **WEIGHTS)


def test_two_segments():
    check(1030, decays=True, batch=(1,), **WEIGHTS)


@pytest.mark.parametrize("decays", [False, True])
@pytest.mark.parametrize("length", [64, 400, 700])
def test_few_heads_are_split_into_groups(length, decays):
    device = Emulator(multiprocessors=6)
    check(length, device, decays=decays, batch=(1,), **WEIGHTS)
    backward = [x for x in device.launches if x.file == "chunk_bwd"]
    expected = [False] if length == 64 else [True, True]
    assert [x.blocks > 1 for x in backward] == expected


@pytest.mark.parametrize(
    ("dtype", "map"),
    slow_unless(
        lambda dtype, map: dtype == "bfloat16",
        [
            ("bfloat16", "relu"),
            ("float16", "relu"),
            ("bfloat16", "exp"),
            ("float32", "exp"),
        ],
    ),
)
def test_maps_and_scales(dtype, map):
    options = {**SCALED, "map": map, "scale": 0.25, "decays": True}
    check(130, dtype=dtype, **options)


@pytest.mark.parametrize(
    ("dtype", "dims", "shared", "tokens"),
    [
        ("bfloat16", (64, 64), 99 << 10, 32),
        ("bfloat16", (64, 64), H200, 64),
        ("bfloat16", (128, 128), 163 << 10, 32),
        ("bfloat16", (128, 128), H200, 64),
        ("float16", (128, 128), H200, 16),
        ("float32", (64, 64), 99 << 10, 16),
    ],
)
@pytest.mark.slow
def test_tiles_fit_shared_memory(dtype, dims, shared, tokens):
    device = Emulator(shared=shared)
    check(70, device, dtype=dtype, dims=dims, decays=True, batch=(1,))
    launch = device.launches[-1]
    assert launch.shared <= shared
    assert f", {tokens}, 8>" in launch.kernel


def test_states_beyond_the_range_of_float16():
    """States and scores exceed it where inputs and gradients do not."""
    case, wide = random_case(length=70, dtype="float16", **SCALED, scale=2.0**-20)
    for each in (case, wide):
        each.inputs = tuple(
            x if x is None or i == 3 else x * 64 for i, x in enumerate(each.inputs)
        )
    results, expected = gradients_of(case), on_numpy(*wide.arrays(), **wide.options())
    assert max(abs(x).max() for x in (wide.inputs[4], expected.memory)) < 65504
    for x, y in zip(results, expected, strict=True):
        if y is not None:
            assert np.linalg.norm(x.astype(float) - y) <= 2.0**-10 * np.linalg.norm(y)


@pytest.mark.parametrize("dtype", NAMES)
def test_queries_do_not_see_later_nans(dtype):
    case, _ = random_case(length=130, dtype=dtype, **WEIGHTS)
    finite = gradients_of(case)
    for x in (*case.inputs[:3], case.cotangents[0]):
        x[..., 100:, :] = np.nan
    infected = gradients_of(case)
    # Tiles of 16 tokens are multiplied at once.
    before = (slice(None), slice(0, 96))
    np.testing.assert_array_equal(infected.query[before], finite.query[before])
    assert np.isnan(infected.query[:, 100:].astype(float)).all()


def test_no_cotangents_of_the_state():
    case, wide = random_case(length=70, **WEIGHTS)
    for each in (case, wide):
        each.cotangents = (each.cotangents[0], None, None)
    expected = on_numpy(*wide.arrays(), **wide.options())
    np.testing.assert_allclose(gradients_of(case).memory, expected.memory, 0, 1e-3)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("weights", "bfloat16"), ("scaled", "float32"), ("decays", "float16")],
)
def test_no_order_of_threads_changes_a_bit(kind, dtype):
    case, _ = random_case(dtype=dtype, **SMALL[kind])
    exact = [way for way in WAYS if not way.truncates]
    results, *others = (gradients_of(case, Emulator(way)) for way in exact)
    for other in others:
        for x, y in zip(results, other, strict=True):
            np.testing.assert_array_equal(x, y, strict=True)


@pytest.mark.parametrize(
    ("dims", "shared"),
    [((136, 8), H200), ((12, 16), H200), ((128, 128), 99 << 10)],
)
def test_other_sizes_do_without_tensor_cores(dims, shared):
    case, _ = random_case(length=3, dims=dims)
    device = Emulator(shared=shared)
    on_device(device, case)
    assert {launch.file for launch in device.launches} == {"chunk_bwd_simt"}
