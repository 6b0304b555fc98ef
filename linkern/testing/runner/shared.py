"""The session of a process: pytest asks for checks one by one, in any order."""

import atexit
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from linkern.testing.checks import CHECKS
from linkern.testing.diagnosis.diagnosis import Diagnosis
from linkern.testing.errors import UsageError
from linkern.testing.runner import canaries
from linkern.testing.runner.plan import Plan
from linkern.testing.runner.results import CheckResult
from linkern.testing.runner.rounds import Question
from linkern.testing.runner.session import Session

__all__ = ["SHARED_SESSION", "SharedSession", "why_no_verdict"]


class SharedSession:
    """At most one open target, kept for the next check of the same plan.

    Starting a target can take seconds (importing PyTorch does), and an open one holds
    memory, perhaps on a GPU. Two plans are the same if they are the same object.
    """

    def __init__(self) -> None:
        self._plan: Plan | None = None
        self._session: Session | None = None
        self._refusal: UsageError | None = None
        self._causes: dict[tuple[str, ...], Diagnosis | None] = {}

    def open(self, plan: Plan) -> Session:
        """Return the session of a plan; open its target if it is not open.

        Raises
        ------
        UsageError
            If the target, the contract or an option cannot be used.
        """
        if self._plan is plan and self._refusal is not None:
            raise self._refusal  # it would fail again, once for each check
        if self._plan is not plan or self._session is None:
            self.close()
            self._plan = plan
            try:
                with _no_warnings():
                    self._session = Session(plan)
            except UsageError as error:
                self._refusal = error
                raise
        return self._session

    def result(self, plan: Plan, name: str) -> CheckResult:
        """Return the verdict of one check of a plan.

        Raises
        ------
        UsageError
            If the target, the contract or an option cannot be used.
        """
        session = self.open(plan)
        with _no_warnings():
            return session.result(Question(session.plan, CHECKS[name]))

    def cause(self, plan: Plan) -> Diagnosis | None:
        """Return the cause of what has failed so far; it is looked for once."""
        session = self.open(plan)
        if session.broken not in self._causes:
            with _no_warnings():
                self._causes[session.broken] = session.diagnosis()
        return self._causes[session.broken]

    def close(self) -> None:
        """End the process of the target."""
        if self._session is not None:
            self._session.close()
        self._plan = self._session = self._refusal = None
        self._causes.clear()


# The only one of this process.
SHARED_SESSION = SharedSession()
atexit.register(SHARED_SESSION.close)


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
