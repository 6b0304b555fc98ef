"""Operators whose heads are shared by threads: the bits of all heads at once."""

import threading

import numpy as np
import pytest

import linkern
from linkern.kernels.numpy import by_heads as module
from linkern.kernels.numpy import threads
from linkern.kernels.numpy.by_heads import by_heads
from linkern.operators.register import DEFINITIONS
from linkern.state import State
from tests.operators.problems import problem
from tests.waiting import LONG

NAMES = [name for name, each in DEFINITIONS.items() if each.several_passes]


@pytest.fixture(autouse=True)
def two_threads(monkeypatch):
    monkeypatch.setenv("LINKERN_NUM_THREADS", "2")
    monkeypatch.setattr(threads, "WORTH_THREADS", 1)
    monkeypatch.setattr(module, "_WORTH", 1)
    monkeypatch.setattr(module, "_HEADS", 1)
    monkeypatch.setattr(module, "_ENTRIES", 1)


def arrays(result):
    return result.output, result.state.memory, result.state.normalizer


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("batch", [1, 2])
def test_heads_do_not_depend_on_how_many_run_at_a_time(name, batch, monkeypatch):
    inputs = problem(name, np.random.default_rng(0), 70, batch=batch, heads=3)
    first = getattr(linkern, name)(**inputs)
    result = getattr(linkern, name)(**inputs, initial_state=first.state)
    monkeypatch.setenv("LINKERN_NUM_THREADS", "1")
    expected = getattr(linkern, name)(**inputs, initial_state=first.state)
    for x, y in zip(arrays(result), arrays(expected), strict=True):
        np.testing.assert_array_equal(x, y)


def doubled(state, *, value):
    """Return what an operator with one input would; `None` is passed on."""
    return 2 * value, State(state.memory + 1, state.normalizer)


def call(attend, batch=(2, 3), normalizer=True):
    rng = np.random.default_rng(0)
    memory = rng.normal(size=(*batch, 4, 5))
    sums = rng.normal(size=(*batch, 4)) if normalizer else None
    value = rng.normal(size=(*batch, 6, 5))
    output, state = by_heads(attend, State(memory, sums), {"value": value})
    return (output, *state), (2 * value, memory + 1, sums)


@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (3, 1), (0, 2)])
@pytest.mark.parametrize("normalizer", [True, False])
def test_results_come_in_their_places(batch, normalizer):
    for result, expected in zip(*call(doubled, batch, normalizer), strict=True):
        np.testing.assert_array_equal(result, expected)


def test_heads_run_side_by_side_and_start_no_threads():
    both, counts = threading.Barrier(2, timeout=LONG), []

    def attend(state, *, value):
        counts.append(threads.threads_for(1 << 30))
        both.wait()  # would never return if heads came one after the other
        return doubled(state, value=value)

    call(attend, (1, 2))
    assert counts == [1, 1]
    assert threads.threads_for(1 << 30) == 2


def test_one_head_leaves_the_threads_to_kernels():
    counts = []

    def attend(state, *, value):
        counts.append(threads.threads_for(1 << 30))
        return doubled(state, value=value)

    call(attend, (1, 1))
    assert counts == [2]


def test_errors_are_raised_and_end_the_limit():
    def attend(state, *, value):
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        call(attend)
    assert threads.threads_for(1 << 30) == 2
