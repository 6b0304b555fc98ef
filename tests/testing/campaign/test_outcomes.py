"""Outcomes of tasks: each once, exceptions as results, the lost ones alone at last."""

from concurrent.futures import Future

import pytest

from linkern.testing.campaign.engine import Engine
from linkern.testing.campaign.outcomes import outcomes
from linkern.testing.campaign.task import Unjudged


class Lost(Exception):
    """A worker ended."""


class Played:
    """Executor that answers each task with the next of its answers, all at once."""

    def __init__(self, **answers):
        self.answers = {name: list(each) for name, each in answers.items()}
        self.asked = []

    def submit(self, _function, task):
        future = Future()
        self.asked.append(task)
        answer = self.answers[task].pop(0)
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        return future

    def outcomes(self):
        tasks = {f"the key of {name}": name for name in self.answers}
        return dict(outcomes(Engine(self.submit, (Lost,)), tasks))


PASSED = Unjudged("refused", "an answer")


def test_a_lost_task_is_tried_once_more_after_all_others():
    played = Played(a=[Lost(), PASSED], b=[PASSED], c=[Lost(), Lost()])
    results = played.outcomes()
    assert played.asked == ["a", "b", "c", "a", "c"]
    assert results == {
        "the key of a": PASSED,
        "the key of b": PASSED,
        "the key of c": Unjudged("lost", "not judged: its worker ended twice."),
    }


def test_a_retry_is_alone():
    played = Played(a=[Lost(), PASSED], b=[Lost(), PASSED])
    tasks = {"a": "a", "b": "b"}
    answers = outcomes(Engine(played.submit, (Lost,)), tasks)
    next(answers)
    assert played.asked == ["a", "b", "a"]
    assert dict(answers) == {"b": PASSED}


def test_an_exception_is_a_result_and_ends_nothing():
    played = Played(a=[ImportError("No module named linkern")], b=[PASSED])
    assert played.outcomes() == {
        "the key of a": Unjudged("error", "ImportError: No module named linkern"),
        "the key of b": PASSED,
    }


def test_ctrl_c_is_no_result():
    def submit(function, task):
        future = Future()
        future.set_exception(KeyboardInterrupt())
        return future

    with pytest.raises(KeyboardInterrupt):
        list(outcomes(Engine(submit, (Lost,)), {"a": "a"}))
