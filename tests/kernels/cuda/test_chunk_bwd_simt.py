"""Gradients of the plain kernels in the emulator: those of NumPy, in any order."""

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
# One kernel for each: what is compiled takes longer than what is run.
KINDS = {
    "decays and weights": {"decays": True},
    "weights": {"map": "exp"},
    "decays": {"map": "identity", "normalize": False, "decays": True, "scale": 0.5},
    "neither": {"map": "relu", "normalize": False},
}
# Where chunks of 16 tokens end, and the segments of 16 of them; panels of 32 channels
# that are full, and those that are not.
LENGTHS = (0, 1, 15, 16, 17, 256, 257, 530)
DIMS = ((1, 1), (5, 3), (32, 31), (32, 32), (33, 40))
# As few tokens and channels as go through every branch, for who watches each access.
SMALL = {
    "two segments": {**KINDS["decays and weights"], "length": 261, "batch": (2,)},
    "two panels": {**KINDS["decays and weights"], "length": 18, "dims": (33, 32)},
    "no state": {**KINDS["neither"], "length": 35, "dims": (2, 34)},
}
# Of the largest entry, or of 1, as the terms of sums that are none are large: the query
# of a single feature is divided away, and its gradient is 0.
BOUNDS = {np.float64: 1e-12, np.float32: 4e-6}


def rounded(of, dtype):
    """The same problem in `dtype`, and what it is in float64."""
    real = np.promote_types(dtype, np.float32) if dtype is np.float64 else np.float32
    of_inputs = (dtype, dtype, dtype, real, real, real)
    of_cotangents = (dtype, real, real)

    def cast(arrays, kinds):
        pairs = zip(arrays, kinds, strict=True)
        return tuple(None if x is None else x.astype(kind) for x, kind in pairs)

    inputs, cotangents = cast(of.inputs, of_inputs), cast(of.cotangents, of_cotangents)
    wide = {
        "inputs": cast(inputs, [float] * 6),
        "cotangents": cast(cotangents, [float] * 3),
    }
    return Problem(**{**vars(of), "inputs": inputs, "cotangents": cotangents}), Problem(
        **{**vars(of), **wide}
    )


def on_device(device, of):
    made = getattr(feature_maps, of.map)
    return pullback(device, *of.arrays(), feature_map=made, scale=of.scale)


def check(found, due, inputs, bound, spacing=0.0):
    for name, x, y, given_ in zip(Gradients._fields, found, due, inputs, strict=True):
        assert (x is None) == (y is None), name
        if y is None:
            continue
        assert x.shape == y.shape, name
        assert x.dtype == given_.dtype, name
        error = abs(x.astype(float) - y)
        assert (
            error <= bound * (1 + abs(y).max(initial=0)) + spacing * abs(y)
        ).all(), name


def check_problem(of, dtype=np.float64, device=None, spacing=0.0):
    of, wide = rounded(of, dtype)
    found = on_device(device or Emulator(), of)
    due = on_numpy(*wide.arrays(), **wide.options())
    bound = BOUNDS.get(dtype, BOUNDS[np.float32])
    check(found, due, of.inputs, bound, spacing)


def in_short_segments(dims):
    """Two segments of two chunks, as a kernel with the same change has them."""

    def law(device):
        made = {**KINDS["decays and weights"], "length": 37, "dims": dims}
        of = problem(np.random.default_rng(7), batch=(1,), **made)
        with mock.patch.object(chunk_bwd_simt, "_SEGMENT_CHUNKS", 2):
            check_problem(of, device=device)

    return law


PROBLEMS = {
    "two panels": in_short_segments((33, 3)),
    "two slices": in_short_segments((3, 33)),
}


@settings(max_examples=60)
@given(st.data())
def test_gradients_are_those_on_numpy(data):
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    of = problem(
        np.random.default_rng(data.draw(st.integers(0, 2**16))),
        length=data.draw(st.sampled_from(LENGTHS)),
        batch=data.draw(st.sampled_from([(), (2,), (2, 1, 2)])),
        dims=data.draw(st.sampled_from(DIMS)),
        **KINDS[kind],
    )
    strength = data.draw(st.sampled_from([1, 20, 88, 800]))
    if of.inputs[3] is not None:
        of.inputs[3][...] *= strength
    kept = (None if data.draw(st.integers(0, 4)) == 0 else x for x in of.cotangents)
    of.cotangents = tuple(kept)
    check_problem(of, device=Emulator(data.draw(st.sampled_from(WAYS))))


@pytest.mark.parametrize("length", [37, 530])
@pytest.mark.parametrize(
    ("dtype", "spacing"),
    [(np.float32, 0.0), (np.float16, 2.0**-11), (ml_dtypes.bfloat16, 2.0**-8)],
)
def test_narrow_dtypes_are_rounded_once(dtype, spacing, length):
    of = problem(np.random.default_rng(1), length=length, dims=(20, 36), decays=True)
    check_problem(of, dtype, spacing=spacing)


def test_no_order_of_threads_changes_a_bit():
    of = problem(np.random.default_rng(2), **SMALL["two segments"])
    found, *others = (on_device(Emulator(way), of) for way in WAYS)
    for other in others:
        for x, y in zip(found, other, strict=True):
            np.testing.assert_array_equal(x, y, strict=True)


@pytest.mark.parametrize("decay", [-np.inf, -88.0, -800.0])
def test_what_a_strong_decay_forgets_has_no_gradient(decay):
    of = problem(np.random.default_rng(3), length=300, dims=(3, 4), decays=True)
    of.inputs[3][..., 270, :] = decay
    check_problem(of)
    of.cotangents[0][..., :270, :] = 0
    found = on_device(Emulator(), of)
    most = np.exp(decay) * 1e6
    assert abs(found.key[..., :270, :]).max() <= most
    assert abs(found.memory).max() <= most
    assert abs(found.log_decay[..., 270, :]).max() <= most


def test_rows_lie_anywhere():
    of = problem(np.random.default_rng(4), length=20, batch=(3, 2), decays=True)
    query, key, value, log_decay, memory, normalizer = of.inputs
    inputs = (
        np.asfortranarray(query),
        key[:, :1, ::-1].repeat(2, axis=-2)[..., ::2, :],
        np.broadcast_to(value[:, :, :1], value.shape),
        np.broadcast_to(log_decay[:1], log_decay.shape),
        memory.swapaxes(-1, -2).copy().swapaxes(-1, -2),
        normalizer[::-1],
    )
    key = np.broadcast_to(inputs[1], query.shape)
    of.inputs = (inputs[0], key, *inputs[2:])
    check(
        on_device(Emulator(), of),
        on_numpy(*of.arrays(), **of.options()),
        of.inputs,
        BOUNDS[np.float64],
    )


@pytest.mark.parametrize("dims", [(0, 3), (3, 0)])
def test_no_features_or_no_values(dims):
    of = problem(np.random.default_rng(5), dims=dims, **KINDS["decays"])
    check_problem(of)
