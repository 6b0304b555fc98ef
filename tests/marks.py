"""Marks for parameters of tests."""

from zlib import crc32

import pytest

__all__ = ["every", "in_turn", "slow_unless"]


def every(step, cases, *, slow=1.0):
    """Return the cases of a test; one of `step` runs by default.

    Parameters
    ----------
    step : int
        Of so many cases, one runs by default.
    cases : iterable
        Values, or tuples of values, for `pytest.mark.parametrize`.
    slow : float
        The share of the others that are slow. Where cases take seconds and differ
        little, the rest is exhaustive as well.
    """
    marked = []
    for i, case in enumerate(_tuples(cases)):
        marks = [pytest.mark.slow] if i % step else []
        before = i - i // step - 1  # cases that do not run by default either
        if marks and int((before + 1) * slow) == int(before * slow):
            marks.append(pytest.mark.exhaustive)
        marked.append(pytest.param(*case, marks=marks))
    return marked


def slow_unless(kept, cases):
    """Return the cases of a test; those for which `kept` is False are slow.

    Parameters
    ----------
    kept : callable
        Called with the values of a case: True if it runs by default.
    cases : iterable
        Values, or tuples of values, for `pytest.mark.parametrize`.
    """
    return [
        pytest.param(*case, marks=() if kept(*case) else pytest.mark.slow)
        for case in _tuples(cases)
    ]


def in_turn(kept, cases, *, step=1):
    """Return the cases of a test, most of them exhaustive.

    Of the cases that differ in their last value alone and do not run by default, one is
    slow, and the others are exhaustive as well. Which one follows from the other values
    of the case, so that among many cases each last value has its turn. Where each case
    takes seconds, only one of `step` such groups has a slow case.

    Parameters
    ----------
    kept : callable
        Called with the values of a case: True if it runs by default.
    cases : iterable of tuple
        Values for `pytest.mark.parametrize`, of which `repr` says the same everywhere.
    step : int
        Of so many groups, about one has a slow case.
    """
    alike = {}
    for case in cases:
        alike.setdefault(case[:-1], []).append(case)
    marked = []
    for first, group in alike.items():
        slow = [case for case in group if not kept(*case)]
        marked += [pytest.param(*case) for case in group if kept(*case)]
        drawn, turn = divmod(crc32(repr(first).encode()), max(len(slow), 1))
        for i, case in enumerate(slow):
            mine = i == turn and drawn % step == 0
            others = () if mine else (pytest.mark.exhaustive,)
            marked.append(pytest.param(*case, marks=(pytest.mark.slow, *others)))
    return marked


def _tuples(cases):
    return [case if isinstance(case, tuple) else (case,) for case in cases]
