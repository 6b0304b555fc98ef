"""Gradients on tensor cores, emulated: whole numbers exactly, others nearly."""

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

NAMES = ("bfloat16", "float16", "float32")
# Relative to the norm of what is due: of rows, which are written in their dtype, and of
# states and log-decays, which are sums in float32 of products of what is rounded.
BOUNDS = {
    "bfloat16": (2.0**-6, 2.0**-6),
    "float16": (2.0**-11, 2.0**-14),
    "float32": (2.0**-19, 2.0**-19),
}
SCALED = {"map": "identity", "normalize": False, "dims": (16, 16)}
WEIGHTS = {"dims": (40, 24)}
H200 = 227 << 10  # bytes of shared memory
# As few tokens as go through every branch, for who watches each access.
SMALL = {
    "weights": {**WEIGHTS, "length": 70, "batch": (1,)},
    "scaled": {**SCALED, "length": 70, "batch": (1,), "scale": 0.5},
    "decays": {**WEIGHTS, "length": 70, "batch": (1,), "decays": True},
}


def drawn(seed=0, dtype="bfloat16", **choices):
    return rounded(problem(np.random.default_rng(seed), **choices), DTYPES[dtype])


def walked(of, device=None):
    device = device or Emulator()
    found = on_device(device, of)
    assert device.launches[-1].file == "chunk_bwd"
    # No two rows of a block of a matrix lie in the same banks.
    assert device.counts["matrix_passes"] == 4 * device.counts["matrix_loads"]
    return found


def whole_numbers(length, dtype, decays, seed=0):
    """A problem in which no sum is rounded before it is written."""
    rng = np.random.default_rng(seed)

    def ones(*shape):
        return rng.integers(-1, 2, shape).astype(float)

    rows, state = (2, length, 16), (2, 16, 16)
    fades = None
    if decays:
        # All is left, or nothing.
        fades = np.where(rng.random((2, length, 1)) < 0.03, -np.inf, 0.0)
    inputs = (ones(*rows), ones(*rows), ones(*rows), fades, ones(*state), None)
    chosen = {"map": "identity", "normalize": False, "scale": 1.0}
    chosen |= {"size": 64, "causal": True}
    return rounded(
        Problem(inputs=inputs, cotangents=(ones(*rows), ones(*state), None), **chosen),
        DTYPES[dtype],
    )


@pytest.mark.parametrize("length", [1, 15, 64, 200])
@pytest.mark.parametrize("decays", [False, True])
@pytest.mark.parametrize("dtype", NAMES)
def test_whole_numbers_are_exact(dtype, decays, length):
    of, wide = whole_numbers(length, dtype, decays)
    found, due = walked(of), on_numpy(*wide.arrays(), **wide.options())
    for name, x, y in zip(Gradients._fields, found, due, strict=True):
        if y is not None:
            np.testing.assert_array_equal(x, y.astype(x.dtype), name, strict=True)


def check(length, device=None, dtype="bfloat16", **choices):
    of, wide = drawn(length=length, dtype=dtype, **choices)
    found = walked(of, device)
    due = on_numpy(*wide.arrays(), **wide.options())
    for name, x, y in zip(Gradients._fields, found, due, strict=True):
        assert (x is None) == (y is None), name
        if y is None:
            continue
        assert x.shape == y.shape, name
        bound = BOUNDS[dtype][name not in ("query", "key", "value")]
        error = np.linalg.norm(x.astype(float) - y)
        assert error <= bound * np.linalg.norm(y), (name, error / np.linalg.norm(y))


def in_short_segments(device):
    """Two chunks are a segment, and not all of what a block can hold is there."""
    with mock.patch.object(chunk_bwd, "_SEGMENT_CHUNKS", 2):
        check(130, device, dims=(8, 24), batch=(1,), decays=True)


def in_planes(device):
    """Rows are split apart from where the next ones land."""
    check(70, device, dtype="float16", dims=(16, 16), batch=(1,), decays=True)


def in_groups(device):
    """Each chunk is a segment, and the first two are a group."""
    segments = mock.patch.multiple(chunk_bwd, _SEGMENT_CHUNKS=1, _MIN_CHUNKS=1)
    with segments, mock.patch.object(device, "multiprocessors", 2):
        check(129, device, dims=(8, 24), batch=(1,), decays=True)


PROBLEMS = {
    "short segments": in_short_segments,
    "planes": in_planes,
    "groups": in_groups,
}


@pytest.mark.parametrize("length", [63, 130])
@pytest.mark.parametrize("decays", [False, True])
@pytest.mark.parametrize("dtype", NAMES)
def test_weights(dtype, decays, length):
    check(length, dtype=dtype, decays=decays, **WEIGHTS)


def test_two_segments():
    check(1030, decays=True, batch=(1,), **WEIGHTS)


@pytest.mark.parametrize("decays", [False, True])
@pytest.mark.parametrize("length", [64, 400, 700])
def test_few_heads_go_back_in_groups(length, decays):
    device = Emulator(multiprocessors=6)
    check(length, device, decays=decays, batch=(1,), **WEIGHTS)
    walks = [x for x in device.launches if x.file == "chunk_bwd"]
    assert [x.blocks > 1 for x in walks] == ([False] if length == 64 else [True, True])


@pytest.mark.parametrize(
    ("dtype", "map"),
    [
        ("bfloat16", "relu"),
        ("float16", "relu"),
        ("bfloat16", "exp"),
        ("float32", "exp"),
    ],
)
def test_maps_and_scales(dtype, map):
    choices = {**SCALED, "map": map, "scale": 0.25, "decays": True}
    check(130, dtype=dtype, **choices)


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
def test_a_head_is_cut_as_shared_memory_allows(dtype, dims, shared, tokens):
    device = Emulator(shared=shared)
    check(70, device, dtype=dtype, dims=dims, decays=True, batch=(1,))
    launch = device.launches[-1]
    assert launch.shared <= shared
    assert f", {tokens}, 8>" in launch.kernel


def test_numbers_beyond_float16_are_no_harm():
    """Memories and pairs go further than rows do."""
    of, wide = drawn(length=70, dtype="float16", **SCALED, scale=2.0**-20)
    for each in (of, wide):
        each.inputs = tuple(
            x if x is None or i == 3 else x * 64 for i, x in enumerate(each.inputs)
        )
    found, due = walked(of), on_numpy(*wide.arrays(), **wide.options())
    assert max(abs(x).max() for x in (wide.inputs[4], due.memory)) < 65504
    for x, y in zip(found, due, strict=True):
        if y is not None:
            assert np.linalg.norm(x.astype(float) - y) <= 2.0**-10 * np.linalg.norm(y)


@pytest.mark.parametrize("dtype", NAMES)
def test_queries_do_not_see_what_is_not_finite_behind_them(dtype):
    of, _ = drawn(length=130, dtype=dtype, **WEIGHTS)
    sound = walked(of)
    for x in (*of.inputs[:3], of.cotangents[0]):
        x[..., 100:, :] = np.nan
    broken = walked(of)
    # All of a tile of 16 tokens is multiplied together.
    before = (slice(None), slice(0, 96))
    np.testing.assert_array_equal(broken.query[before], sound.query[before])
    assert np.isnan(broken.query[:, 100:].astype(float)).all()


def test_no_cotangents_of_the_state():
    of, wide = drawn(length=70, **WEIGHTS)
    for each in (of, wide):
        each.cotangents = (each.cotangents[0], None, None)
    due = on_numpy(*wide.arrays(), **wide.options())
    np.testing.assert_allclose(walked(of).memory, due.memory, 0, 1e-3)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("weights", "bfloat16"), ("scaled", "float32"), ("decays", "float16")],
)
def test_no_order_of_threads_changes_a_bit(kind, dtype):
    of, _ = drawn(dtype=dtype, **SMALL[kind])
    exact = [way for way in WAYS if not way.truncates]
    found, *others = (walked(of, Emulator(way)) for way in exact)
    for other in others:
        for x, y in zip(found, other, strict=True):
            np.testing.assert_array_equal(x, y, strict=True)


@pytest.mark.parametrize(
    ("dims", "shared"),
    [((136, 8), H200), ((12, 16), H200), ((128, 128), 99 << 10)],
)
def test_what_does_not_fit_is_pulled_plainly(dims, shared):
    of, _ = drawn(length=3, dims=dims)
    device = Emulator(shared=shared)
    on_device(device, of)
    assert {launch.file for launch in device.launches} == {"chunk_bwd_simt"}
