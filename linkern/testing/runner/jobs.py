"""Spread the checks of a run over this process and further ones.

Inputs follow from seed, check and dtype, so a check has the same result wherever it
runs. A question is a check in one round. Its answer depends on others in one way: a
deviation that an earlier check reported is not reported again. A check that ran without
that knowledge is run once more.
"""

import contextlib
import math
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from linkern.testing.errors import TargetDied
from linkern.testing.runner.judging import Judgement
from linkern.testing.runner.plan import Plan
from linkern.testing.runner.rounds import Question
from linkern.testing.runner.worker import Late, Ready, Task
from linkern.testing.target.child import Child
from linkern.testing.target.clock import Clock
from linkern.testing.target.process import LOAD_TIMEOUT
from linkern.testing.target.protocol import Refused
from linkern.testing.target.wire import OWN

__all__ = ["MOST_HANGS", "Spread"]

# A target that hangs on everything costs this many timeouts, not one for every check.
MOST_HANGS = 2
WORKER = "linkern.testing.runner.worker"
# Seconds that a worker has to end its target.
PATIENCE = 2.0

Judge = Callable[[Question, Mapping[str, str]], Judgement]


class Spread:
    """Checks of one run, taken up one after the other by several processes.

    Parameters
    ----------
    plan : Plan
        Target, contract and number of processes.
    questions : sequence of Question
        The checks of all rounds, in their order.
    judge : callable
        ``judge(question, reported)``: the judgement in this process.
    clock : Clock
        The time of the run.
    """

    def __init__(
        self, plan: Plan, questions: Sequence[Question], judge: Judge, clock: Clock
    ) -> None:
        self._plan, self._questions, self._judge = plan, questions, judge
        self._clock = clock
        self._left = deque(questions)
        self._reported: Mapping[str, str] = {}
        self._judgements: dict[tuple[str, int, str], Judgement] = {}
        self._hangs = 0
        self._changed = threading.Condition()
        helpers = min(plan.processes, len(questions)) - 1
        self._children = [Child(WORKER) for _ in range(helpers)]
        self._threads = [
            threading.Thread(target=self._help, args=(child,), daemon=True)
            for child in self._children
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> "Spread":
        """Return the checks; they are being judged already."""
        return self

    def __exit__(self, *error: object) -> None:
        """Give up what nobody has asked for, and end the processes."""
        with self._changed:
            self._left.clear()
        for child in self._children:
            child.end(patience=PATIENCE)
        for thread in self._threads:
            thread.join()

    def judgement(self, question: Question) -> Judgement:
        """Return a judgement; ask for one after the other, in their order.

        This process judges checks while it waits.

        Raises
        ------
        OutOfTime
            If the time of the run is over before.
        """
        while True:
            with self._changed:
                judgement = self._judgements.get(question.key)
                if judgement is not None:
                    self._report(question, judgement.reported)
                    return judgement
                mine = self._next(question)
                if mine is None:
                    self._clock.require()
                    self._changed.wait(self._clock.wait)
                    continue
                reported = self._reported
            self._keep(mine, self._judge(mine, reported))

    def _report(self, question: Question, reported: Mapping[str, str]) -> None:
        """Let all checks after this one know; forget those that did not."""
        if reported == self._reported:
            return
        self._reported = reported
        self._judgements.clear()
        position = self._questions.index(question)
        self._left = deque(self._questions[position + 1 :])
        self._changed.notify_all()

    def _next(self, wanted: Question | None = None) -> Question | None:
        """Return a check that nobody has taken up.

        Of a target that hangs again and again, only the one that is `wanted`.
        """
        if not self._left:
            return None
        if self._hangs >= MOST_HANGS and self._left[0] is not wanted:
            return None
        return self._left.popleft()

    def _keep(self, question: Question, judgement: Judgement) -> None:
        """Keep a judgement, unless there is something that it did not know."""
        with self._changed:
            if judgement.before == self._reported:
                self._judgements[question.key] = judgement
                self._hangs += judgement.hung
            self._changed.notify_all()

    def _help(self, child: Child) -> None:
        """Have a worker judge checks for as long as there are any."""
        question: Question | None = None
        # What dies here is the worker; the death of a target is a judgement.
        with contextlib.suppress(TargetDied):
            opened = child.ask(self._plan, LOAD_TIMEOUT, (Ready, Refused))
            while isinstance(opened, Ready):
                with self._changed:
                    question, reported = self._next(), self._reported
                if question is None:
                    break
                task = Task(
                    question.plan, question.check.name, reported, self._clock.left
                )
                judgement = child.ask(task, math.inf, (Judgement, Late), OWN)
                if isinstance(judgement, Late):
                    break
                self._keep(question, judgement)
                question = None
        if question is not None:
            with self._changed:
                self._left.appendleft(question)
                self._changed.notify_all()
        child.end(patience=PATIENCE)
