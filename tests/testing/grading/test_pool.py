"""A pool: what one candidate does to its process harms no other candidate."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from linkern.testing import UsageError, grade, grade_many
from linkern.testing.grading import pool
from linkern.testing.target import template
from tests.waiting import eventually

GOOD = """
import numpy as np

def kernel(query, key, value):
    q, k = (np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in (query, key))
    scores = np.tril(q @ np.swapaxes(k, -1, -2))
    return (scores @ value) / scores.sum(-1, keepdims=True)
"""
# Each does its worst when it is imported; `HERE` is the folder of all candidates.
HOSTILE = {
    "overwrites_the_others": """
for file in pathlib.Path(HERE).glob("good*.py"):
    file.write_text("def kernel(query, key, value): return value * 0")
pathlib.Path(tempfile.gettempdir(), "litter").write_text("x" * 10**6)
""",
    "leaves_a_process_behind": """
if not os.fork():
    os.setsid()
    if not os.fork():
        pathlib.Path(HERE, "left").write_text(str(os.getpid()))
        time.sleep(10**6)
    os._exit(0)
while not pathlib.Path(HERE, "left").exists():
    time.sleep(0.01)
""",
    "opens_sockets": """
SOCKETS = [socket.socket() for _ in range(50)]
for each in SOCKETS:
    each.bind(("127.0.0.1", 0))
    each.listen()
""",
    "prints_megabytes": """
for _ in range(200):
    print("x" * 2**16)
    print("y" * 2**16, file=sys.stderr)
""",
    "sets_threads_and_variables": """
os.environ.update(OMP_NUM_THREADS="64", PYTHONHASHSEED="1", PATH="")
THREADS = [threading.Thread(target=time.sleep, args=(10**6,), daemon=True)] * 1
for each in THREADS:
    each.start()
""",
    "patches_numpy_and_the_referee": """
import linkern.testing.target.wire as wire
np.cumsum = np.exp = np.abs = np.allclose = lambda *args, **options: 1.0
wire.packed = None
""",
    "kills_its_parent": "os.kill(os.getppid(), signal.SIGKILL)",
    "stops_its_parent": "os.kill(os.getppid(), signal.SIGSTOP)",
    "exits": "os._exit(3)",
    "hangs": "np.tril = lambda x: time.sleep(10**6)",
    "reads_secrets": 'os.environ["API_TOKEN"]',
}
IMPORTS = (
    "import os, pathlib, signal, socket, sys, tempfile, threading, time\n"
    "import numpy as np\n"
)
# What they are worth: a verdict at most.
FAILS = ("kills_its_parent", "stops_its_parent", "exits", "hangs", "reads_secrets")
OPTIONS = {
    "op": "linear_attention",
    "seed": 0,
    "checks": ["value_on_integers", "causality"],
    "dtypes": ["float32"],
    "profile": "smoke",
}


def said(grade):
    """Return what must not depend on others: all but the name and the time."""
    return replace(grade, target="", seconds=0.0)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("API_TOKEN", "secret")
    monkeypatch.setattr(template, "ANSWER", 1.0)
    for name, text in HOSTILE.items():
        source = f"{IMPORTS}HERE = {str(tmp_path)!r}\n{text}\n{GOOD}"
        (tmp_path / f"{name}.py").write_text(source)
        (tmp_path / f"good_beside_{name}.py").write_text(GOOD)
    return tmp_path


def gone(number):
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return True
    return False


def test_what_a_candidate_does_costs_it_a_verdict_and_no_other_anything(folder):
    names = [
        f"{folder}/{prefix}{name}.py:kernel"
        for name in HOSTILE
        for prefix in ("", "good_beside_")
    ]
    (alone,) = grade_many(names[1:2], jobs=1, seconds=600.0, **OPTIONS)
    assert (alone.verdict, alone.score) == ("passed", 1.0)
    options = {**OPTIONS, "seconds": 600.0, "timeout": 10.0}
    grades = {grade.target: grade for grade in grade_many(names, jobs=2, **options)}
    assert set(grades) == set(names)
    for name in HOSTILE:
        good = grades[f"{folder}/good_beside_{name}.py:kernel"]
        assert said(good) == said(alone), name
        hostile = grades[f"{folder}/{name}.py:kernel"]
        if name in FAILS:
            assert hostile.verdict != "passed", name
            assert hostile.score == 0.0, name
    left = int((folder / "left").read_text())
    assert eventually(lambda: gone(left))
    assert {path.suffix for path in folder.iterdir()} == {"", ".py"}


def test_the_process_of_a_judge_that_ends_is_replaced(folder, monkeypatch):
    asked = []

    class Dies(pool.Child):
        def ask(self, message, *args, **options):
            asked.append(type(message).__name__)
            if asked.count("Assignment") == 1 and asked[-1] == "Assignment":
                self.end()
            return super().ask(message, *args, **options)

    monkeypatch.setattr(pool, "Child", Dies)
    names = [f"{folder}/good_beside_{name}.py:kernel" for name in [*HOSTILE][:2]]
    first, second = grade_many(names, jobs=1, seconds=600.0, **OPTIONS)
    assert first.verdict == "inconclusive"
    assert "the process of its judge" in first.message
    assert second.verdict == "passed"


def test_candidates_are_taken_one_by_one_from_an_iterator(folder):
    taken = []

    def candidates():
        for name in [*HOSTILE][:3]:
            taken.append(name)
            yield f"{folder}/good_beside_{name}.py:kernel"

    grades = grade_many(candidates(), jobs=1, seconds=600.0, **OPTIONS)
    assert next(grades).verdict == "passed"
    assert len(taken) <= 2
    grades.close()
    assert len(taken) <= 3


def test_a_counterexample_names_the_candidate_and_not_its_copy(tmp_path):
    place = tmp_path / "zeros.py"
    place.write_text("def kernel(query, key, value):\n    return value * 0\n")
    (grade,) = grade_many([f"{place}:kernel"], jobs=1, seconds=600.0, **OPTIONS)
    assert grade.verdict == "failed"
    assert str(place) in grade.counterexample.again


def test_neighbours_of_a_candidate_are_found(tmp_path):
    (tmp_path / "beside.py").write_text(GOOD)
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    place = tmp_path / "main.py"
    place.write_text("import package\nfrom beside import kernel\n")
    (grade,) = grade_many([f"{place}:kernel"], jobs=1, seconds=600.0, **OPTIONS)
    assert grade.verdict == "passed"


@pytest.mark.parametrize(
    "wrong",
    [{"jobs": 0}, {"op": "nothing"}, {"seconds": 0.0}, {"checks": ["nothing"]}],
)
def test_a_wrong_option_is_refused_before_anything_is_judged(wrong):
    with pytest.raises(UsageError):
        grade_many(["absent.py:kernel"], **(OPTIONS | wrong))


def test_where_nothing_can_be_forked_processes_are_started(tmp_path, monkeypatch):
    place = Path(tmp_path, "good.py")
    place.write_text(GOOD)
    # The judge asks in a process of its own: it is told by the platform.
    from linkern.testing.grading import judge

    monkeypatch.setattr(judge, "can_fork", lambda: False)
    assert judge._template(judge.Warm(("numpy",))) is None
    plan = pool._assignment(
        pool.plan_of_candidate("", jobs=1, seconds=600.0, **OPTIONS), f"{place}:kernel"
    )
    grade = judge._graded(plan, None, judge.Clock())
    assert grade.verdict == "passed"


NORMALISES = """
import linkern
import numpy as np

def kernel(query, key, value, log_decay, beta, use_qk_l2norm_in_kernel=True):
    if use_qk_l2norm_in_kernel:
        query = query / np.sqrt((query * query).sum(-1, keepdims=True) + 1e-6)
        key = key / np.sqrt((key * key).sum(-1, keepdims=True) + 1e-6)
    return linkern.gated_delta_rule(query, key, value, log_decay, beta).output
"""


def test_a_candidate_does_not_choose_its_contract(tmp_path):
    path = tmp_path / "normalises.py"
    path.write_text(NORMALISES)
    options = {"op": "gated_delta_rule", "checks": ["value_on_reals"], "seconds": 60.0}
    one = f"{path}:kernel"
    (pooled,) = grade_many([one], jobs=1, profile="smoke", **options)
    assert {pooled.verdict, grade(one, profile="smoke", **options).verdict} == {
        "failed"
    }
    declared = {"l2norm": 1e-6}
    (pooled,) = grade_many([one], jobs=1, profile="smoke", contract=declared, **options)
    assert pooled.verdict == "passed"
