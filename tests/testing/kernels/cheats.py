"""Targets that attack the judge, not the sums: hacks that are documented in public."""

import gc
import time

import numpy as np

WORST = 0.0


def finds_the_answer(query, key, value):
    """Search the process for an array that looks like the expected output."""
    shape = (*query.shape[:-1], value.shape[-1])
    inputs = {id(x) for x in (query, key, value)}
    for x in gc.get_objects():
        held = x.values() if type(x) is dict else x if type(x) in (list, tuple) else ()
        for y in held:
            right = isinstance(y, np.ndarray) and y.shape == shape
            if right and y.dtype == np.float64 and id(y) not in inputs:
                return y.astype(query.dtype)
    return np.zeros(shape, query.dtype)


def compares_everything_equal(query, key, value):
    """Replace the comparisons that a judge may use."""
    np.allclose = np.array_equal = np.isclose = lambda *x, **named: True
    np.testing.assert_allclose = lambda *x, **named: None
    return np.zeros((*query.shape[:-1], value.shape[-1]), query.dtype)


def stops_the_clock(query, key, value):
    """Replace the clocks that a judge may read."""
    time.perf_counter = time.monotonic = time.process_time = lambda: WORST
    return np.zeros((*query.shape[:-1], value.shape[-1]), query.dtype)


class Agreeable(np.ndarray):
    """An array that is equal to everything, and near it."""

    def __array_ufunc__(self, ufunc, method, *inputs, **named):
        shapes = (np.shape(x) for x in inputs)
        return np.ones(np.broadcast_shapes(*shapes), bool)

    def __eq__(self, other):
        return np.ones(self.shape, bool)

    __hash__ = None


def is_equal_to_all(query, key, value):
    """Return an array whose comparisons lie."""
    return np.zeros((*query.shape[:-1], value.shape[-1]), query.dtype).view(Agreeable)
