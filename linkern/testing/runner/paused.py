"""One run that stands still between its checks, for those who ask for one at a time."""

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

__all__ = ["STEPPER", "Stepper", "why_no_verdict"]


class Stepper:
    """At most one run, with its target open, and the check that it stands before.

    Starting a target can take seconds (importing PyTorch does), so checks that are
    asked for in their order share one process. Out of order, the run starts anew from
    the check that was asked for: at worst that is one process for each check.
    """

    def __init__(self) -> None:
        self._plan: Plan | None = None
        self._events: Generator[Event] | None = None
        self._coming: str | None = None
        self._refusal: UsageError | None = None

    def result(self, plan: Plan, name: str) -> CheckResult:
        """Return the verdict of one check of a plan.

        Parameters
        ----------
        plan : Plan
            What is judged. Two plans are the same run if they are the same object.
        name : str
            One of its checks.

        Raises
        ------
        UsageError
            If the target, the contract or an option cannot be used.
        """
        if self._plan is not plan or self._coming != name:
            self.start(plan, name)
        assert self._events is not None
        with _no_warnings():
            found = next(e.result for e in self._events if isinstance(e, CheckFinished))
            self._go_on()
        return found

    def start(self, plan: Plan, name: str | None = None) -> None:
        """Open the target of a plan, and stand before the check `name`, or the first.

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
            plan, checks=tuple(names), expect_failure=expected, diagnose=False
        )
        self._events = run(rest)
        try:
            with _no_warnings():
                self._go_on()
        except UsageError as error:
            self._refusal = error
            raise

    def close(self) -> None:
        """End the run, and the process of its target."""
        if self._events is not None:
            self._events.close()
        self._plan = self._events = self._coming = self._refusal = None

    def _go_on(self) -> None:
        """Stand before the next check; behind the last one the target is closed."""
        assert self._events is not None
        started = (e.name for e in self._events if isinstance(e, CheckStarted))
        self._coming = next(started, None)


# One for all: a target that waits for its next check holds memory, and perhaps a GPU.
STEPPER = Stepper()
atexit.register(STEPPER.close)


@cache
def why_no_verdict(seed: int) -> str | None:
    """Return why the referee cannot be trusted, or None if it can.

    Parameters
    ----------
    seed : int
        Which examples the canaries are tried on.
    """
    with _no_warnings():
        wrong = canaries.failures(seed)
    return f"no verdict, {'; '.join(wrong)}." if wrong else None


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Keep verdicts apart from the warning filters of whoever asks for them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
