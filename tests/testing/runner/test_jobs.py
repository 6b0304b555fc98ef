"""Checks that are spread over processes have the results that one process gives."""

import threading
from dataclasses import replace

import pytest

from linkern.testing import CHECKS, Plan, UsageError
from linkern.testing.errors import TargetDied
from linkern.testing.runner import jobs
from linkern.testing.runner.jobs import MOST_HANGS, Spread
from linkern.testing.runner.judging import Judgement
from linkern.testing.runner.loop import CheckFinished, Diagnosed, run
from linkern.testing.runner.results import CheckResult
from linkern.testing.runner.rounds import Question
from linkern.testing.runner.worker import Late, Ready
from linkern.testing.target.clock import Clock

EXAMPLE = "examples/chunked_attention.py"
RAISES = """
from linkern.testing.kernels.correct import quadratic

def kernel(query, key, value):
    if query.shape[2] > 16:
        raise ValueError
    return quadratic(query, key, value)
"""
NAMES = ("value_on_integers", "causality", "row_normalisation", "dimensions", "prefix")


def plan(target, **options):
    return Plan(
        target,
        "linear_attention",
        dtypes=("float32",),
        profile="quick",
        **{"checks": NAMES, **options},
    )


def said(result):
    """Return what must not depend on the process: all but the time it took."""
    example = result.counterexample
    shown = example and (example.input, example.index, example.got, example.bound)
    return replace(result, seconds=0.0, counterexample=None), shown


@pytest.mark.parametrize("kernel", ["attention", "with_epsilon"])
def test_the_results_are_those_of_one_process(kernel):
    one, two = (
        list(run(plan(f"{EXAMPLE}:{kernel}", jobs=number))) for number in (1, 2)
    )
    results = [
        [said(e.result) for e in events if isinstance(e, CheckFinished)]
        for events in (one, two)
    ]
    assert results[0] == results[1]
    assert [r.name for r, _ in results[1]] == list(NAMES)
    causes = [e.diagnosis for e in (one[-1], two[-1]) if isinstance(e, Diagnosed)]
    assert causes[:1] == causes[1:]


def test_a_target_that_raises_is_one_finding_in_any_number_of_processes(tmp_path):
    kernel = tmp_path / "kernel.py"
    kernel.write_text(RAISES)
    for number in (1, 3):
        events = run(plan(f"{kernel}:kernel", jobs=number, diagnose=False))
        verdicts = [e.result.verdict for e in events if isinstance(e, CheckFinished)]
        assert verdicts == ["failed", "covered", "covered", "covered", "covered"]


@pytest.mark.parametrize("number", [0, -1])
def test_a_number_of_processes_is_positive(number):
    with pytest.raises(UsageError, match=rf"`jobs` must be a positive .* got {number}"):
        plan("kernels:good", jobs=number)


def test_a_function_is_judged_in_one_process():
    assert plan("f", function=len).processes == 1
    assert plan("f", in_process=True).processes == 1
    assert plan("f", device="cuda").processes == 1
    assert plan("f", jobs=3).processes == 3
    with pytest.raises(UsageError, match=r"`jobs` must be 1 .* name the target"):
        plan("f", function=len, jobs=2)


# -- the queue, with workers that are threads


class Worker:
    """In place of a process: judges in the thread that asks."""

    answer = None

    def __init__(self, module):
        assert module == jobs.WORKER
        self.ended = False

    def ask(self, message, timeout, answers, limits=None):
        del timeout, limits
        if isinstance(message, Plan):
            return Ready()
        assert answers == (Judgement, Late)
        return self.answer(message.check, message.reported)

    def end(self, patience=0.0):
        del patience
        self.ended = True


def judgement(name, before=None, **known):
    before = before or {}
    result = CheckResult(name, "a law", "passed")
    return Judgement(result, before=before, **{"reported": before, **known})


def spread(monkeypatch, answer, judge, number=2, names=NAMES):
    monkeypatch.setattr(jobs, "Child", type("Of", (Worker,), {"answer": answer}))
    judged = plan("kernels:good", jobs=number)
    questions = [Question(judged, CHECKS[name]) for name in names]
    held = Spread(
        judged, questions, lambda q, reported: judge(q.check, reported), Clock()
    )
    return held, questions


def test_a_worker_that_dies_leaves_its_check_to_others(monkeypatch):
    asked = threading.Event()

    def dies(worker, name, reported):
        asked.set()
        msg = "crashed"
        raise TargetDied(msg, hung=False)

    def judge(check, reported):
        assert asked.wait(timeout=60)
        return judgement(check.name)

    held, checks = spread(monkeypatch, dies, judge)
    with held:
        got = [held.judgement(check).result.name for check in checks]
    assert got == list(NAMES)
    assert all(child.ended for child in held._children)


def test_what_did_not_know_of_a_finding_is_judged_again(monkeypatch):
    ahead = threading.Event()

    def answer(name, reported):
        if name == NAMES[0]:
            assert ahead.wait(timeout=60)
            return judgement(name, reported={"it raises": name})
        ahead.set()
        return judgement(name, dict(reported))

    held, checks = spread(
        monkeypatch,
        lambda worker, name, reported: answer(name, reported),
        lambda check, reported: answer(check.name, reported),
    )
    with held:
        first, *rest = [held.judgement(check) for check in checks]
    assert [one.result.name for one in (first, *rest)] == list(NAMES)
    assert all(one.before == {"it raises": NAMES[0]} for one in rest)


def test_after_some_hangs_nothing_is_taken_up_but_what_is_asked_for(monkeypatch):
    def hangs(worker, name, reported):
        return judgement(name, hung=True)

    mine = []

    def judge(check, reported):
        mine.append(check.name)
        return judgement(check.name, hung=True)

    held, checks = spread(monkeypatch, hangs, judge, number=1)
    with held:
        for check in checks[:MOST_HANGS]:
            held.judgement(check)
        assert held._next() is None
        assert held._next(checks[MOST_HANGS]) is checks[MOST_HANGS]
    assert mine == list(NAMES[:MOST_HANGS])


def test_an_end_before_the_last_check_ends_the_workers(monkeypatch):
    held, checks = spread(
        monkeypatch,
        lambda worker, name, reported: judgement(name),
        lambda check, reported: judgement(check.name),
    )
    with held:
        held.judgement(checks[0])
    assert all(child.ended for child in held._children)
    assert not any(thread.is_alive() for thread in held._threads)
