"""Answers are kept by all that they depend on, and by nothing else."""

from dataclasses import replace

import numpy as np
import pytest

from linkern.testing.problems import expected
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import OPERATORS
from tests.testing.solved_once import Answers, solved_once


def call(seed=0, op="gla", dtype="float32", **declared):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(1, 1, 5, 3)).astype(np.float32)
    inputs = {"query": x, "key": x, "value": x, "log_decay": -abs(x)}
    return expected.OracleCall(OPERATORS[op], Contract(**declared), dtype, inputs)


def of_other_meaning():
    other = call()
    vars(other)["meant"] = {**call().meant, "key": call(1).meant["key"]}
    return other


def of_other_operator():
    return replace(call(), operator=replace(OPERATORS["gla"], early_erase=True))


def with_state():
    return replace(call(), initial_state=(np.ones((1, 1, 3, 3)),))


@pytest.fixture
def answers():
    with solved_once(Answers()) as answers:
        yield answers


def test_the_same_call_is_answered_once(answers):
    first = expected.output(call())
    assert expected.output(call()) is first
    assert answers.hits == 1
    with pytest.raises(ValueError, match="read-only"):
        first.output[0] = 0


@pytest.mark.parametrize(
    "other",
    [
        call(1),
        call(dtype="bfloat16"),
        call(chunk_size=2),
        replace(call(), exact=True),
        of_other_meaning(),
        of_other_operator(),
        with_state(),
    ],
)
def test_another_call_has_an_answer_of_its_own(answers, other):
    expected.output(call())
    expected.output(other)
    assert answers.hits == 0


def test_other_options_have_answers_of_their_own(answers):
    cotangent = np.ones((1, 1, 5, 3))
    expected.output(call())
    expected.output(call(), 4.0)
    expected.output(call(), shared_features=True)
    expected.states(call())
    expected.gradients(call(), cotangent)
    expected.gradients(call(), 2 * cotangent)
    assert answers.hits == 0
    expected.gradients(call(), cotangent)
    assert answers.hits == 1


def test_answers_are_dropped_when_they_take_too_much():
    with solved_once(Answers(most=1000)) as answers:
        for seed in range(20):
            expected.output(call(seed))
            assert answers.bytes <= 1000
        assert len(answers.kept) < 20


def test_the_functions_are_put_back():
    before = expected.output
    with solved_once(Answers()):
        assert expected.output is not before
    assert expected.output is before
