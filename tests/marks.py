"""Marks for parameters of tests."""

import pytest

__all__ = ["every", "slow_unless"]


def every(step, cases):
    """Return the cases of a test; one of `step` runs by default, the rest is slow."""
    tuples = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [
        pytest.param(*case, marks=pytest.mark.slow if i % step else ())
        for i, case in enumerate(tuples)
    ]


def slow_unless(kept, cases):
    """Return the cases of a test; those for which `kept` is False are slow.

    Parameters
    ----------
    kept : callable
        Called with the values of a case: True if it runs by default.
    cases : iterable
        Values, or tuples of values, for `pytest.mark.parametrize`.
    """
    tuples = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [
        pytest.param(*case, marks=() if kept(*case) else pytest.mark.slow)
        for case in tuples
    ]
