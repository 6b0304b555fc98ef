"""The scan over the segments of a head, in the emulator."""

from functools import partial

import numpy as np
import pytest

from linkern.kernels.cuda.plan import state_passing
from linkern.kernels.cuda.plan.call import Call
from tests.kernels.cuda.emulator.device import Emulator
from tests.kernels.cuda.problems import WAYS, close

HEADS = 3


def placed(x, shift):
    """Return a copy that begins so many entries behind a multiple of 16 bytes."""
    room = np.empty(x.size + shift, x.dtype)
    view = room[shift:].reshape(x.shape)
    view[...] = x
    return view


def law_scan(
    device, segments, dims, *, normalize=True, reverse=False, ends=True, shift=0
):
    """The states are those of a loop over the segments, in float64."""
    features, values = dims
    rng = np.random.default_rng(segments)
    shapes = [(features, values), (features,)][: 1 + normalize]
    query, value = np.zeros((1, HEADS, 0, features)), np.zeros((1, HEADS, 0, values))
    call = Call(query, query, value, None, None, None, "IDENTITY", normalize, 1.0)
    decay = rng.uniform(0.5, 1, size=(HEADS, segments)).astype(np.float32)
    rows = [rng.normal(size=(HEADS, segments, *x)).astype(np.float32) for x in shapes]
    first = [
        placed(rng.normal(size=(HEADS, *x)).astype(np.float32), shift) for x in shapes
    ]
    last = [np.full((HEADS, *x), np.nan, np.float32) for x in shapes]
    expected = []
    for added, initial in zip(rows, first, strict=True):
        order = [*range(segments)][:: -1 if reverse else 1]
        state = initial.astype(np.float64) if ends else np.zeros(initial.shape)
        states = np.empty(added.shape)
        for segment in order:
            states[:, segment] = state
            by = decay[:, segment].reshape(-1, *[1] * (state.ndim - 1))
            state = by * state + added[:, segment]
        expected += [states, state]
    missing = (None,) * (2 - len(rows))
    initial, final = ((*x, *missing) if ends else (None, None) for x in (first, last))
    launch = state_passing.plan(
        *(device, call, (*rows, *missing), decay, initial, final), reverse=reverse
    )
    device.launch(launch)
    results = [x for pair in zip(rows, last, strict=True) for x in pair]
    pairs = [*zip(results, expected, strict=True)]
    close(*zip(*(pairs if ends else pairs[::2]), strict=True))
    return launch


# Vectors and single entries, one batch of loads and several, both directions.
PROBLEMS = {
    "vectors": partial(law_scan, segments=11, dims=(8, 20)),
    "entries": partial(law_scan, segments=9, dims=(5, 3), reverse=True),
    "no ends": partial(law_scan, segments=2, dims=(8, 8), ends=False),
}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("segments", [1, 7, 8, 9, 25])
@pytest.mark.parametrize(
    ("dims", "normalize", "width"),
    [
        ((64, 64), True, 4),
        ((6, 4), True, 1),
        ((6, 4), False, 4),
        ((5, 7), True, 1),
    ],
)
def test_scans(segments, dims, normalize, width, reverse):
    options = {"normalize": normalize, "reverse": reverse}
    launch = law_scan(Emulator(), segments, dims, **options)
    assert launch.kernel == f"state_passing<{width}>"
    law_scan(Emulator(), segments, dims, ends=False, **options)


@pytest.mark.parametrize("way", WAYS)
def test_scans_in_any_order(way):
    for law in PROBLEMS.values():
        law(Emulator(way))


def test_states_that_are_not_aligned_are_read_entry_by_entry():
    """As a state is that a user cut out of a larger array."""
    for shift, width in ((0, 4), (1, 1), (4, 4)):
        launch = law_scan(Emulator(), 2, (8, 8), shift=shift)
        assert launch.kernel == f"state_passing<{width}>"
