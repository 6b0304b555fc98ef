"""Gradients without tensor cores in the emulator: the results of NumPy."""

from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkern import feature_maps
from linkern.kernels.cuda.backward import pullback
from linkern.kernels.cuda.plan import chunk_bwd_simt
from linkern.kernels.numpy.backward import Gradients
from linkern.kernels.numpy.backward import pullback as on_numpy
from tests.kernels.cuda.emulator.device import Emulator, Way
from tests.kernels.numpy.backward_problems import Problem, problem

WAYS = [
    Way(),
    Way("reverse", resident=2),
    Way("shuffled", seed=3),
    Way("ahead", seed=5, resident=3),
]
# One kernel for each: compilation takes longer than the runs.
KINDS = {
    "decays and weights": {"decays": True},
    "weights": {"map": "exp"},
    "decays": {"map": "identity", "normalize": False, "decays": True, "scale": 0.5},
    "neither": {"map": "relu", "normalize": False},
}
# Around the ends of chunks of 16 tokens and of segments of 16 chunks; full and partial
# panels of 32 channels.
LENGTHS = (0, 1, 15, 16, 17, 256, 257, 530)
DIMS = ((1, 1), (5, 3), (32, 31), (32, 32), (33, 40))
# The fewest tokens and channels that reach every branch, since sanitizers are slow.
SMALL = {
    "two segments": {**KINDS["decays and weights"], "length": 261, "batch": (2,)},
    "two panels": {**KINDS["decays and weights"], "length": 18, "dims": (33, 32)},
    "no state": {**KINDS["neither"], "length": 35, "dims": (2, 34)},
}
# Relative to the largest entry, or to 1: terms of a sum that cancels are large, such as
# for the query of a single feature, whose gradient is 0.
BOUNDS = {np.float64: 1e-12, np.float32: 4e-6}


def rounded(case, dtype):
    """Return a problem rounded to `dtype`, and the same in float64."""
    real = np.promote_types(dtype, np.float32) if dtype is np.float64 else np.float32
    input_dtypes = (dtype, dtype, dtype, real, real, real)
    cotangent_dtypes = (dtype, real, real)

    def cast(arrays, kinds):
        pairs = zip(arrays, kinds, strict=True)
        return tuple(None if x is None else x.astype(kind) for x, kind in pairs)

    inputs = cast(case.inputs, input_dtypes)
    cotangents = cast(case.cotangents, cotangent_dtypes)
    narrow = {"inputs": inputs, "cotangents": cotangents}
    wide = {
        "inputs": cast(inputs, [float] * 6),
        "cotangents": cast(cotangents, [float] * 3),
    }
    return Problem(**{**vars(case), **narrow}), Problem(**{**vars(case), **wide})


def on_device(device, case):
    feature_map = getattr(feature_maps, case.map)
    return pullback(device, *case.arrays(), feature_map=feature_map, scale=case.scale)


def check(results, expected, inputs, bound, spacing=0.0):
    for name, x, y, like in zip(
        Gradients._fields, results, expected, inputs, strict=True
    ):
        assert (x is None) == (y is None), name
        if y is None:
            continue
        assert x.shape == y.shape, name
        assert x.dtype == like.dtype, name
        error = abs(x.astype(float) - y)
        assert (
            error <= bound * (1 + abs(y).max(initial=0)) + spacing * abs(y)
        ).all(), name


def check_problem(case, dtype=np.float64, device=None, spacing=0.0):
    case, wide = rounded(case, dtype)
    results = on_device(device or Emulator(), case)
    expected = on_numpy(*wide.arrays(), **wide.options())
    bound = BOUNDS.get(dtype, BOUNDS[np.float32])
    check(results, expected, case.inputs, bound, spacing)


def in_short_segments(dims):
    """Two segments of two chunks; the kernel must be changed in the same way."""

    def law(device):
        made = {**KINDS["decays and weights"], "length": 37, "dims": dims}
        case = problem(np.random.default_rng(7), batch=(1,), **made)
        with mock.patch.object(chunk_bwd_simt, "_SEGMENT_CHUNKS", 2):
            check_problem(case, device=device)

    return law


PROBLEMS = {
    "two panels": in_short_segments((33, 3)),
    "two slices": in_short_segments((3, 33)),
}


@settings(max_examples=60)
@given(st.data())
def test_gradients_are_those_on_numpy(data):
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    case = problem(
        np.random.default_rng(data.draw(st.integers(0, 2**16))),
        length=data.draw(st.sampled_from(LENGTHS)),
        batch=data.draw(st.sampled_from([(), (2,), (2, 1, 2)])),
        dims=data.draw(st.sampled_from(DIMS)),
        **KINDS[kind],
    )
    strength = data.draw(st.sampled_from([1, 20, 88, 800]))
    if case.inputs[3] is not None:
        case.inputs[3][...] *= strength
    kept = (None if data.draw(st.integers(0, 4)) == 0 else x for x in case.cotangents)
    case.cotangents = tuple(kept)
    check_problem(case, device=Emulator(data.draw(st.sampled_from(WAYS))))


@pytest.mark.parametrize("length", [37, 530])
@pytest.mark.parametrize(
    ("dtype", "spacing"),
    [(np.float32, 0.0), (np.float16, 2.0**-11), (ml_dtypes.bfloat16, 2.0**-8)],
)
def test_narrow_dtypes_are_rounded_once(dtype, spacing, length):
    case = problem(np.random.default_rng(1), length=length, dims=(20, 36), decays=True)
    check_problem(case, dtype, spacing=spacing)


def test_no_order_of_threads_changes_a_bit():
    case = problem(np.random.default_rng(2), **SMALL["two segments"])
    results, *others = (on_device(Emulator(way), case) for way in WAYS)
    for other in others:
        for x, y in zip(results, other, strict=True):
            np.testing.assert_array_equal(x, y, strict=True)


@pytest.mark.parametrize("decay", [-np.inf, -88.0, -800.0])
def test_a_strong_decay_cuts_gradients_off(decay):
    case = problem(np.random.default_rng(3), length=300, dims=(3, 4), decays=True)
    case.inputs[3][..., 270, :] = decay
    check_problem(case)
    case.cotangents[0][..., :270, :] = 0
    results = on_device(Emulator(), case)
    most = np.exp(decay) * 1e6
    assert abs(results.key[..., :270, :]).max() <= most
    assert abs(results.memory).max() <= most
    assert abs(results.log_decay[..., 270, :]).max() <= most


def test_any_layout_of_rows():
    case = problem(np.random.default_rng(4), length=20, batch=(3, 2), decays=True)
    query, key, value, log_decay, memory, normalizer = case.inputs
    inputs = (
        np.asfortranarray(query),
        key[:, :1, ::-1].repeat(2, axis=-2)[..., ::2, :],
        np.broadcast_to(value[:, :, :1], value.shape),
        np.broadcast_to(log_decay[:1], log_decay.shape),
        memory.swapaxes(-1, -2).copy().swapaxes(-1, -2),
        normalizer[::-1],
    )
    key = np.broadcast_to(inputs[1], query.shape)
    case.inputs = (inputs[0], key, *inputs[2:])
    check(
        on_device(Emulator(), case),
        on_numpy(*case.arrays(), **case.options()),
        case.inputs,
        BOUNDS[np.float64],
    )


@pytest.mark.parametrize("dims", [(0, 3), (3, 0)])
def test_no_features_or_no_values(dims):
    case = problem(np.random.default_rng(5), dims=dims, **KINDS["decays"])
    check_problem(case)
