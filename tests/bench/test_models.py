"""Whole models that generate end in the state of the model that read all tokens."""

import numpy as np
import pytest

from linkern import transformer
from linkern.bench.generation import models
from linkern.bench.runner import run
from linkern.bench.tasks import Task
from linkern.bench.timing import Schedule
from linkern.bench.worker import LocalWorker

LENGTH = 12
SMALL = {"width": 16, "depth": 2, "heads": 2}


def generator(name):
    return next(c for c in models.whole_models(**SMALL) if c.name == name)


def law_generating_is_reading_every_token(name):
    """The timed model has seen all tokens before."""
    one = generator(name)
    session = one.start(LENGTH)
    for start, stop in ((0, 1), (1, 5), (5, LENGTH)):
        one.generate(session, start, stop)
    straight = transformer.prefill(session.model, session.tokens)
    got = transformer.named_arrays(session.state)
    expected = transformer.named_arrays(straight.state)
    assert got.keys() == expected.keys()
    for array in expected:
        # A few roundings of float32 in numbers of size 1.
        np.testing.assert_allclose(got[array], expected[array], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["model-linear", "model-cache"])
def test_generating_is_reading_every_token(name):
    law_generating_is_reading_every_token(name)


@pytest.mark.parametrize("name", ["model-linear", "model-cache"])
def test_a_generator_that_skips_tokens_breaks_the_law(monkeypatch, name):
    true = transformer.decode

    def lazy(model, state, tokens):
        return true(model, state, tokens) if state.position[0] % 2 else (None, state)

    monkeypatch.setattr(models.transformer, "decode", lazy)
    with pytest.raises(AssertionError):
        law_generating_is_reading_every_token(name)


@pytest.mark.parametrize("name", ["model-linear", "model-cache"])
def test_a_late_token_costs_as_if_all_before_had_been_read(name):
    one = generator(name)
    far, near = one.start(LENGTH), one.start(LENGTH)
    one.generate(far, LENGTH - 1, LENGTH)
    one.generate(near, 0, LENGTH)
    assert one.held(far) == one.held(near)
    assert far.state.position.tolist() == near.state.position.tolist() == [LENGTH]


def test_recomputing_runs_the_whole_model(monkeypatch):
    seen = []
    monkeypatch.setattr(
        models.transformer, "language_model", lambda _, x: seen.append(x.shape[1])
    )
    for name in ("model-lsh", "model-recompute"):
        one = generator(name)
        one.generate(one.start(LENGTH), 3, 6)
    assert seen == [4, 5, 6] * 2


@pytest.mark.slow
def test_all_models_can_be_measured():
    schedule = Schedule(rounds=1, pause=0, window=0)
    task = Task("whole models", "", "generate", (5, LENGTH), samples=3)
    generators = models.whole_models(**SMALL)
    parts = run([(task, task.lengths)], generators, schedule, start=LocalWorker)
    rows = [row for part in parts for row in part]
    held = {(row.peer, row.length): row.held_bytes for row in rows}
    assert len(rows) == 8
    assert held["model-linear", 5] == held["model-linear", LENGTH]
    assert held["model-cache", LENGTH] > 2 * held["model-cache", 5]
