"""Whole models as contestants: they compute the same as the models they are."""

import numpy as np
import pytest

from linkern import transformer
from linkern.bench import models
from linkern.bench.generation import measure
from linkern.bench.timing import Schedule

LENGTH = 12
SMALL = {"width": 16, "depth": 2, "heads": 2}


def contestant(name):
    return next(c for c in models.whole_models(**SMALL) if c.name == name)


def law_generating_is_reading_every_token(name):
    """What is timed must be a model that has seen all tokens before."""
    one = contestant(name)
    session = one.prepare(LENGTH)
    for start, stop in ((0, 1), (1, 5), (5, LENGTH)):
        one.generate(session, start, stop)
    straight = transformer.prefill(session.model, session.tokens)
    got = transformer.named_arrays(session.state)
    due = transformer.named_arrays(straight.state)
    assert got.keys() == due.keys()
    for array in due:
        # A few roundings of float32 in numbers of size 1.
        np.testing.assert_allclose(got[array], due[array], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["model-linear", "model-cache"])
def test_generating_is_reading_every_token(name):
    law_generating_is_reading_every_token(name)


@pytest.mark.parametrize("name", ["model-linear", "model-cache"])
def test_a_contestant_that_skips_tokens_breaks_the_law(monkeypatch, name):
    true = transformer.decode

    def lazy(model, state, tokens):
        return true(model, state, tokens) if state.position[0] % 2 else (None, state)

    monkeypatch.setattr(models.transformer, "decode", lazy)
    with pytest.raises(AssertionError):
        law_generating_is_reading_every_token(name)


@pytest.mark.parametrize("name", ["model-linear", "model-cache"])
def test_a_token_far_on_costs_as_if_all_before_had_been_read(name):
    one = contestant(name)
    far, near = one.prepare(LENGTH), one.prepare(LENGTH)
    one.generate(far, LENGTH - 1, LENGTH)
    one.generate(near, 0, LENGTH)
    assert one.held(far) == one.held(near)
    assert far.state.position.tolist() == near.state.position.tolist() == [LENGTH]


def test_those_that_recompute_run_the_whole_model(monkeypatch):
    seen = []
    monkeypatch.setattr(
        models.transformer, "language_model", lambda _, x: seen.append(x.shape[1])
    )
    for name in ("model-lsh", "model-recompute"):
        one = contestant(name)
        one.generate(one.prepare(LENGTH), 3, 6)
    assert seen == [4, 5, 6] * 2


def test_all_of_them_can_be_measured():
    schedule = Schedule(rounds=1, pause=0, window=0)
    found = measure(models.whole_models(**SMALL), [5, LENGTH], schedule, samples=3)
    held = {(row.contestant, row.length): row.held_bytes for row in found}
    assert len(found) == 8
    assert held["model-linear", 5] == held["model-linear", LENGTH]
    assert held["model-cache", LENGTH] > 2 * held["model-cache", 5]
