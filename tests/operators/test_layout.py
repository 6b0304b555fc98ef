"""Layouts that are kept between calls: no check of one is lost in another."""

import numpy as np
import pytest

import linkern
from linkern.operators import layout
from tests.operators.problems import NAMES, operator, problem


@pytest.fixture
def kept(monkeypatch):
    """Layouts that are kept in this test alone."""
    layouts = {}
    monkeypatch.setattr(layout, "_LAYOUTS", layouts)
    return layouts


def outcome(op, inputs, **options):
    """Return the output of a call, or the error that it raises."""
    try:
        return op(**inputs, **options).output
    except (TypeError, ValueError) as error:
        return type(error), str(error)


def variants(inputs):
    """Yield inputs that differ from others in one respect; most are refused."""
    for name, x in inputs.items():
        for other in (
            x[..., :-1],
            x[:, :1] if x.ndim > 1 else x[..., None, None],
            x[..., :1, :] if x.ndim > 2 else x[..., None],
            x.astype("float32"),
            x.astype("int64"),
            x.tolist(),
            -2 * abs(x) - 1,
            2 * abs(x) + 1,
            np.broadcast_to(x, (2, *x.shape)),
            x.view(np.recarray),
            None,
        ):
            yield {**inputs, name: other}


def law_calls_before_do_not_matter(kept, name):
    op, rng = operator(name), np.random.default_rng(0)
    inputs = problem(name, rng, 5, heads=4)
    refused = 0
    for case in variants(inputs):
        for options in ({}, {"scale": 2.0}):
            kept.clear()
            alone = outcome(op, case, **options)
            kept.clear()
            outcome(op, inputs)
            outcome(op, inputs, scale=2.0)
            for _ in range(2):
                after = outcome(op, case, **options)
                if isinstance(alone, tuple):
                    assert isinstance(after, tuple)
                    assert after == alone
                    refused += 1
                else:
                    assert np.array_equal(after, alone, equal_nan=True)
    assert refused


@pytest.mark.parametrize("name", NAMES)
def test_calls_before_do_not_matter(kept, name):
    law_calls_before_do_not_matter(kept, name)


class Forgetful(dict):
    """Wrong layouts: one for each operator, whatever its inputs are."""

    def get(self, key, default=None):
        return super().get(key[0], default)

    def __setitem__(self, key, value):
        super().__setitem__(key[0], value)


class WithoutDtypes(dict):
    """Wrong layouts: the same for inputs of all dtypes."""

    def get(self, key, default=None):
        return super().get(self.cut(key), default)

    def __setitem__(self, key, value):
        super().__setitem__(self.cut(key), value)

    def cut(self, key):
        return (*key[:3], *((name, shape) for name, shape, _ in key[3:]))


@pytest.mark.parametrize("wrong", [Forgetful, WithoutDtypes])
def test_wrong_layouts_are_noticed(monkeypatch, wrong):
    layouts = wrong()
    monkeypatch.setattr(layout, "_LAYOUTS", layouts)
    with pytest.raises(AssertionError):
        law_calls_before_do_not_matter(layouts, "gated_delta_rule")


def test_a_step_like_the_last_one_is_not_checked_again(monkeypatch, kept):
    rng = np.random.default_rng(1)
    key = rng.normal(size=(2, 4))
    token = (key, key, key, -abs(key[:, 0]), np.full(2, 0.5))
    first = linkern.step(linkern.gated_delta_rule, None, *token)
    assert len(kept) == 1

    def refused(*_):
        raise AssertionError

    monkeypatch.setattr(layout, "_checked", refused)
    linkern.step(linkern.gated_delta_rule, first.state, *token)
    with pytest.raises(AssertionError):
        linkern.step(linkern.gated_delta_rule, first.state, *(x[:1] for x in token))


def test_values_of_every_call_are_checked(kept):
    key = np.ones((3, 2))
    decay = np.full(3, -1.0)
    linkern.simple_gla(key, key, key, decay)
    assert kept
    with pytest.raises(ValueError, match="`log_decay` must be a natural logarithm"):
        linkern.simple_gla(key, key, key, -decay)


def test_few_layouts_are_kept(kept):
    for length in range(3 * layout._MOST_LAYOUTS):
        rows = np.ones((length, 2))
        linkern.delta_rule(rows, rows, rows)
        assert len(kept) <= layout._MOST_LAYOUTS
