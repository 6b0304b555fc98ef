"""What a call leaves behind is seen whatever was there before, and undone."""

import os
import random
from pathlib import Path

import numpy as np
import pytest

from linkern.testing.target import side_effects


def left_by(change):
    with side_effects.generators_kept(), side_effects.restored():
        before = side_effects.snapshot()
        change()
        return side_effects.difference(before, side_effects.look())


def raise_on_overflow():
    np.seterr(over="raise")


def go_up():
    os.chdir(os.pardir)


def replace_a_function():
    np.exp = np.sin


CHANGES = {
    "the random state of Python": (
        random.random,
        lambda: random.seed(0),
        lambda: random.shuffle([1, 2, 3]),
    ),
    "the random state of NumPy": (
        np.random.random,
        lambda: np.random.seed(0),  # noqa: NPY002
        lambda: np.random.normal(size=3),  # noqa: NPY002
    ),
    "the error handling of NumPy": (raise_on_overflow,),
    "the working directory": (go_up,),
    "the functions of NumPy": (replace_a_function,),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_named_each_time(name):
    for change in CHANGES[name]:
        for _ in range(3):
            assert left_by(change) == (name,)


def test_nothing_is_seen_where_nothing_was_left():
    assert left_by(lambda: None) == ()
    assert left_by(lambda: np.random.default_rng(0).normal(size=9)) == ()
    assert left_by(lambda: random.Random(0).random()) == ()


def test_everything_is_undone():
    def state():
        of_numpy = np.random.get_state()[1].tobytes()  # noqa: NPY002
        return random.getstate(), of_numpy, np.geterr(), Path.cwd(), np.exp

    before = state()
    for changes in CHANGES.values():
        for change in changes:
            left_by(change)
    assert state() == before


def test_a_failing_call_is_undone_too():
    def fails():
        replace_a_function()
        raise_on_overflow()
        message = "out of shared memory"
        raise RuntimeError(message)

    handling = np.geterr()
    with pytest.raises(RuntimeError):
        left_by(fails)
    assert np.exp(0.0) == 1
    assert np.geterr() == handling
