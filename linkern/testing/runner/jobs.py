"""Spread the checks of a run over this process and further ones.

Inputs follow from seed, check and dtype, so a check has the same result wherever it
runs. It depends on others in one way: a deviation that an earlier check reported is not
reported again. A check that ran without that knowledge is run once more.
"""

import contextlib
import math
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from linkern.testing.checks import Check
from linkern.testing.errors import TargetDied
from linkern.testing.runner.judging import Judgement
from linkern.testing.runner.plan import Plan
from linkern.testing.runner.worker import Ready, Task
from linkern.testing.target.child import Child
from linkern.testing.target.process import LOAD_TIMEOUT
from linkern.testing.target.protocol import Refused
from linkern.testing.target.wire import OWN

__all__ = ["MOST_HANGS", "Spread"]

# A target that hangs on everything costs this many timeouts, not one for every check.
MOST_HANGS = 2
WORKER = "linkern.testing.runner.worker"
# Seconds that a worker has to end its target.
PATIENCE = 2.0

Judge = Callable[[Check, Mapping[str, str]], Judgement]


class Spread:
    """Checks of one run, taken up one after the other by several processes.

    Parameters
    ----------
    plan : Plan
        Target, contract and number of processes.
    checks : sequence of Check
        The checks, in their order.
    judge : callable
        ``judge(check, reported)``: the judgement in this process.
    """

    def __init__(self, plan: Plan, checks: Sequence[Check], judge: Judge) -> None:
        self._plan, self._checks, self._judge = plan, checks, judge
        self._left = deque(checks)
        self._reported: Mapping[str, str] = {}
        self._judgements: dict[str, Judgement] = {}
        self._hangs = 0
        self._changed = threading.Condition()
        helpers = min(plan.processes, len(checks)) - 1
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

    def judgement(self, check: Check) -> Judgement:
        """Return the judgement of a check; ask for one after the other, in their order.

        This process judges checks while it waits.
        """
        while True:
            with self._changed:
                judgement = self._judgements.get(check.name)
                if judgement is not None:
                    self._report(check, judgement.reported)
                    return judgement
                mine = self._next(check)
                if mine is None:
                    self._changed.wait()
                    continue
                reported = self._reported
            self._keep(mine, self._judge(mine, reported))

    def _report(self, check: Check, reported: Mapping[str, str]) -> None:
        """Let all checks after this one know; forget those that did not."""
        if reported == self._reported:
            return
        self._reported = reported
        self._judgements.clear()
        position = self._checks.index(check)
        self._left = deque(self._checks[position + 1 :])
        self._changed.notify_all()

    def _next(self, wanted: Check | None = None) -> Check | None:
        """Return a check that nobody has taken up.

        Of a target that hangs again and again, only the one that is `wanted`.
        """
        if not self._left:
            return None
        if self._hangs >= MOST_HANGS and self._left[0] is not wanted:
            return None
        return self._left.popleft()

    def _keep(self, check: Check, judgement: Judgement) -> None:
        """Keep a judgement, unless there is something that it did not know."""
        with self._changed:
            if judgement.before == self._reported:
                self._judgements[check.name] = judgement
                self._hangs += judgement.hung
            self._changed.notify_all()

    def _help(self, child: Child) -> None:
        """Have a worker judge checks for as long as there are any."""
        check: Check | None = None
        # What dies here is the worker; the death of a target is a judgement.
        with contextlib.suppress(TargetDied):
            opened = child.ask(self._plan, LOAD_TIMEOUT, (Ready, Refused))
            while isinstance(opened, Ready):
                with self._changed:
                    check, reported = self._next(), self._reported
                if check is None:
                    break
                task = Task(check.name, reported)
                self._keep(check, child.ask(task, math.inf, (Judgement,), OWN))
                check = None
        if check is not None:
            with self._changed:
                self._left.appendleft(check)
                self._changed.notify_all()
        child.end(patience=PATIENCE)
