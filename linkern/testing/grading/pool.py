"""Grades of many candidates, by a pool of judges that run nothing of a candidate."""

import os
import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from linkern.testing.errors import TargetDied, UsageError
from linkern.testing.grading.judge import Assignment, Warm
from linkern.testing.grading.single import plan_of_candidate
from linkern.testing.report.grade import Grade
from linkern.testing.runner.plan import Plan, fresh_seed
from linkern.testing.runner.worker import Ready
from linkern.testing.target.child import CALM_THREADS, Child
from linkern.testing.target.process import LOAD_TIMEOUT
from linkern.testing.target.sources import file_of, imported, texts
from linkern.testing.target.template import PRELOADABLE, scrubbed
from linkern.testing.target.wire import OWN

__all__ = ["grade_many"]

JUDGE = "linkern.testing.grading.judge"
# Seconds beyond those of a run that a judge has for its answer, and for its end.
GRACE, PATIENCE = 2.0, 2.0


def grade_many(
    candidates: Iterable[str],
    *,
    op: str,
    jobs: int = 2,
    seconds: float = 20.0,
    seed: int | None = None,
    **options: Any,
) -> Iterator[Grade]:
    """Grade candidates as `grade` does, several at a time in warm processes.

    Each candidate runs in processes of its own, with a folder of its own and without
    the environment variables of this one; the files of all candidates of a sequence
    are read before any of them runs. All candidates get the same seed.

    Parameters
    ----------
    candidates : iterable of str
        Their names, ``path/to/file.py:attribute`` or ``package.module:attribute``; of
        an iterator each is taken when a process is free.
    op : str
        Operator that they claim to be.
    jobs : int
        Candidates that are judged at a time.
    seconds : float
        Time of each.
    seed : int, optional
        Seed of the examples. Default: a fresh one.
    **options
        Other arguments of `linkern.testing.grade`.

    Yields
    ------
    Grade
        As they come; `Grade.target` says whose.

    Raises
    ------
    UsageError
        If an option cannot be used; before any candidate is judged.

    Examples
    --------
    >>> names = ["linkern:linear_attention", "linkern:no_such_operator"]
    >>> options = {"profile": "smoke", "checks": ["causality"], "dtypes": ["float32"]}
    >>> grades = grade_many(names, op="linear_attention", **options)
    >>> sorted((grade.target, grade.verdict) for grade in grades)
    [('linkern:linear_attention', 'passed'), ('linkern:no_such_operator', 'refused')]
    """
    if jobs < 1:
        msg = f"`jobs` must be a positive number of processes, got {jobs}."
        raise UsageError(msg)
    seed = fresh_seed() if seed is None else seed
    options = {key: value for key, value in options.items() if value is not None}
    common = {"op": op, "seconds": seconds, "seed": seed, "jobs": 1}
    plan = plan_of_candidate("", **common, **options)
    if isinstance(candidates, Sequence):
        candidates = tuple(candidates)
        assignments = iter([_assignment(plan, name) for name in candidates])
    else:
        assignments = (_assignment(plan, name) for name in candidates)
    return _graded(assignments, jobs)


def _assignment(plan: Plan, target: str) -> Assignment:
    """Return a candidate with its files as they are now."""
    plan, path = replace(plan, target=target), file_of(target)
    if path is None or not target.rpartition(":")[0].endswith(".py"):
        return Assignment(plan, {})
    try:
        files = texts(path)
    except (OSError, UnicodeDecodeError):
        return Assignment(plan, {})
    return Assignment(plan, files, (str(path.parent.resolve()),))


def _libraries(assignment: Assignment) -> tuple[str, ...]:
    """Return the libraries that a template needs for a candidate."""
    path = file_of(assignment.plan.target)
    names = imported(path) if path is not None else set()
    names |= {"numpy", assignment.plan.framework or "numpy"}
    return tuple(name for name in PRELOADABLE if name in names)


@dataclass
class _Desk:
    """A judge process, started when it is needed."""

    judge: Child | None = None
    libraries: tuple[str, ...] = ()

    def grade(self, assignment: Assignment) -> Grade:
        """Return the grade of a candidate, or why there is none."""
        plan = assignment.plan
        assert plan.seconds is not None
        try:
            judge = self._ready(_libraries(assignment))
            timeout = plan.seconds + GRACE
            grade: Grade = judge.ask(assignment, timeout, (Grade,), OWN)
        except TargetDied as death:
            self.close()
            message = f"no verdict: the process of its judge {death.reason}"
            return Grade(
                plan.target, plan.op, "inconclusive", message=message, seed=plan.seed
            )
        return grade

    def _ready(self, libraries: tuple[str, ...]) -> Child:
        missing = set(libraries) - set(self.libraries)
        if self.judge is None:
            # A candidate sees the variables of its judge, and those are no secrets.
            self.judge = Child(JUDGE, CALM_THREADS | scrubbed(os.environ))
        elif not missing:
            return self.judge
        self.libraries = tuple(dict.fromkeys((*self.libraries, *libraries)))
        self.judge.ask(Warm(self.libraries), LOAD_TIMEOUT, (Ready,))
        return self.judge

    def close(self) -> None:
        """End the judge, and with it its template and what was forked from that."""
        if self.judge is not None:
            self.judge.end(patience=PATIENCE)
        self.judge = None


def _graded(assignments: Iterator[Assignment], jobs: int) -> Iterator[Grade]:
    """Yield grades while threads, each with a judge, take up assignments."""
    lock, over = threading.Lock(), threading.Event()
    grades: queue.Queue[Grade | BaseException | None] = queue.Queue()

    def take() -> Assignment | None:
        with lock:
            return None if over.is_set() else next(assignments, None)

    def work() -> None:
        desk = _Desk()
        try:
            while (assignment := take()) is not None:
                grades.put(desk.grade(assignment))
        except BaseException as error:
            grades.put(error)
        finally:
            desk.close()
            grades.put(None)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    try:
        ended = 0
        while ended < jobs:
            grade = grades.get()
            if isinstance(grade, BaseException):
                raise grade
            if grade is None:
                ended += 1
            else:
                yield grade
    finally:
        over.set()
        for thread in threads:
            thread.join()
