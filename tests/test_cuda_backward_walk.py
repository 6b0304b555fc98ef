"""Gradients on tensor cores, emulated: whole numbers exactly, others nearly."""

from unittest import mock

import ml_dtypes
import numpy as np
import pytest

from linkern._cpu.backward import Gradients
from linkern._cpu.backward import pullback as on_numpy
from linkern._cuda import backward_walk
from tests.backward_problems import Problem, problem
from tests.emulator.device import Emulator, Way
from tests.test_cuda_backward import on_device, rounded

BFLOAT16 = ml_dtypes.bfloat16
WAYS = [
    Way(),
    Way("reverse", landing="at once", resident=2),
    Way("shuffled", landing="at random", seed=3),
    Way("ahead", seed=5, resident=3),
]
SCALED = {"map": "identity", "normalize": False, "dims": (16, 16)}
WEIGHTS = {"dims": (40, 24)}
# As few tokens as go through every branch, for who watches each access.
SMALL = {
    "weights": {**WEIGHTS, "length": 70, "batch": (1,)},
    "scaled": {**SCALED, "length": 70, "batch": (1,), "scale": 0.5},
}


def drawn(seed=0, **choices):
    return rounded(problem(np.random.default_rng(seed), **choices), BFLOAT16)


def walked(of, device=None):
    device = device or Emulator()
    found = on_device(device, of)
    assert device.launches[-1].file == "backward_walk"
    return found


def whole_numbers(length, seed=0):
    """A problem in which no sum is rounded before it is written."""
    rng = np.random.default_rng(seed)

    def ones(*shape):
        return rng.integers(-1, 2, shape).astype(float)

    rows, state = (2, length, 16), (2, 16, 16)
    inputs = (ones(*rows), ones(*rows), ones(*rows), None, ones(*state), None)
    chosen = {"map": "identity", "normalize": False, "scale": 1.0}
    chosen |= {"size": 64, "causal": True}
    return rounded(
        Problem(inputs=inputs, cotangents=(ones(*rows), ones(*state), None), **chosen),
        BFLOAT16,
    )


def check_whole_numbers(length, device=None):
    of, wide = whole_numbers(length)
    found = walked(of, device)
    due = on_numpy(*wide.arrays(), **wide.options())
    for name, x, y in zip(Gradients._fields, found, due, strict=True):
        if y is not None:
            np.testing.assert_array_equal(x, y.astype(x.dtype), name, strict=True)


@pytest.mark.parametrize("length", [1, 15, 64, 65, 200, 1030])
def test_whole_numbers_are_exact(length):
    check_whole_numbers(length)


def check_weights(length, device=None, **choices):
    of, wide = drawn(length=length, **{**WEIGHTS, **choices})
    found = walked(of, device)
    due = on_numpy(*wide.arrays(), **wide.options())
    for name, x, y in zip(Gradients._fields, found, due, strict=True):
        if y is None:
            continue
        assert x.shape == y.shape, name
        # Features, pairs and memories are rounded to 2^-9 of themselves, in queries to
        # be divided by weights and subtracted; states are sums of many such.
        bound = 2.0**-10 if name in ("memory", "normalizer") else 2.0**-6
        error = np.linalg.norm(x.astype(float) - y)
        assert error <= bound * np.linalg.norm(y), name


def in_short_segments(device):
    """Two chunks are a segment, and not all of what a block can hold is there."""
    with mock.patch.object(backward_walk, "_SEGMENT", 2):
        check_weights(130, device, dims=(8, 24), batch=(1,))


PROBLEMS = {"short segments": in_short_segments}


@pytest.mark.parametrize("length", [1, 63, 64, 130, 1030])
def test_weights(length):
    check_weights(length)


def test_no_cotangents_of_the_state():
    of, wide = drawn(length=70, **WEIGHTS)
    for each in (of, wide):
        each.cotangents = (each.cotangents[0], None, None)
    due = on_numpy(*wide.arrays(), **wide.options())
    np.testing.assert_allclose(walked(of).memory, due.memory, 0, 1e-3)


@pytest.mark.parametrize("kind", SMALL)
def test_no_order_of_threads_changes_a_bit(kind):
    of, _ = drawn(**SMALL[kind])
    found, *others = (walked(of, Emulator(way)) for way in WAYS)
    for other in others:
        for x, y in zip(found, other, strict=True):
            np.testing.assert_array_equal(x, y, strict=True)


@pytest.mark.parametrize(
    "choices", [{"dims": (72, 8)}, {"dims": (12, 16)}, {"decays": True}]
)
def test_what_does_not_fit_is_pulled_plainly(choices):
    of, _ = drawn(length=3, **choices)
    device = Emulator()
    on_device(device, of)
    assert {launch.file for launch in device.launches} == {"backward"}
