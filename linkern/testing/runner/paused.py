"""A run that pauses after each check, so that pytest can report checks one by one."""

import atexit
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

from linkern.testing.errors import UsageError
from linkern.testing.runner import canaries
from linkern.testing.runner.loop import CheckFinished, CheckStarted, Event, run
from linkern.testing.runner.plan import Plan
from linkern.testing.runner.results import CheckResult

__all__ = ["PAUSED_RUN", "PausedRun", "why_no_verdict"]


class PausedRun:
    """At most one run, with its target open, paused before one of its checks.

    Starting a target can take seconds (importing PyTorch does), so checks requested in
    their order share one process. Out of order, the run starts again from the requested
    check: at worst that is one process for each check.
    """

    def __init__(self) -> None:
        self._plan: Plan | None = None
        self._events: Generator[Event] | None = None
        self._next: str | None = None
        self._refusal: UsageError | None = None

    def result(self, plan: Plan, name: str) -> CheckResult:
        """Return the verdict of one check of a plan.

        Parameters
        ----------
        plan : Plan
            Target and contract. Two plans are the same run if they are the same object.
        name : str
            One of its checks.

        Raises
        ------
        UsageError
            If the target, the contract or an option cannot be used.
        """
        if self._plan is not plan or self._next != name:
            self.start(plan, name)
        assert self._events is not None
        with _no_warnings():
            result = next(
                e.result for e in self._events if isinstance(e, CheckFinished)
            )
            self._pause_before_next()
        return result

    def start(self, plan: Plan, name: str | None = None) -> None:
        """Open the target of a plan, and pause before the check `name`, or the first.

        Raises
        ------
        UsageError
            If the target, the contract or an option cannot be used.
        """
        if self._plan is plan and self._refusal is not None:
            raise self._refusal  # it would fail again, once for each check
        self.close()
        self._plan = plan
        names = [check.name for check in plan.chosen()]
        names = names[0 if name is None else names.index(name) :]
        expected = {k: v for k, v in plan.expect_failure.items() if k in names}
        rest = replace(
            plan,
            checks=tuple(names),
            expect_failure=expected,
            diagnose=False,
            fail_fast=False,  # each check that pytest asks for has a verdict
            jobs=1,  # and none runs before it is asked for
        )
        self._events = run(rest)
        try:
            with _no_warnings():
                self._pause_before_next()
        except UsageError as error:
            self._refusal = error
            raise

    def close(self) -> None:
        """End the run, and the process of its target."""
        if self._events is not None:
            self._events.close()
        self._plan = self._events = self._next = self._refusal = None

    def _pause_before_next(self) -> None:
        """Run up to the next check; after the last one the target is closed."""
        assert self._events is not None
        started = (e.name for e in self._events if isinstance(e, CheckStarted))
        self._next = next(started, None)


# The only one: a paused target holds memory, and perhaps a GPU.
PAUSED_RUN = PausedRun()
atexit.register(PAUSED_RUN.close)


@cache
def why_no_verdict(seed: int) -> str | None:
    """Return the canaries that failed as one sentence, or None if all passed.

    Parameters
    ----------
    seed : int
        Seed of the examples of the canaries.
    """
    with _no_warnings():
        wrong = canaries.failures(seed)
    return f"no verdict, {'; '.join(wrong)}." if wrong else None


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Ignore warnings, so that verdicts do not depend on the filters of a caller."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
