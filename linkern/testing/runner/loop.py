"""Run the checks: one loop that yields events, and prints nothing."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from linkern.testing.checks import Check
from linkern.testing.diagnosis.diagnose import Diagnosis
from linkern.testing.diagnosis.fingerprint import Fingerprint
from linkern.testing.runner.jobs import Spread
from linkern.testing.runner.plan import Plan
from linkern.testing.runner.results import CheckResult
from linkern.testing.runner.session import Ask, Session

__all__ = [
    "CheckFinished",
    "CheckStarted",
    "Diagnosed",
    "Event",
    "Fingerprinted",
    "Opened",
    "run",
]


@dataclass(frozen=True)
class Opened:
    """The target was called once; `plan` has the library and the dtypes judged.

    `notes` say which library was inferred, and which dtypes the target refuses.
    """

    plan: Plan
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckStarted:
    """A check is about to run."""

    name: str
    position: int
    total: int


@dataclass(frozen=True)
class CheckFinished:
    """A check has its verdict."""

    result: CheckResult


@dataclass(frozen=True)
class Diagnosed:
    """The checks have run, some failed, and the search for a cause has ended."""

    diagnosis: Diagnosis | None


@dataclass(frozen=True)
class Fingerprinted:
    """The arithmetic of the target was measured, as far as that is possible."""

    fingerprint: Fingerprint | None


Event = Opened | CheckStarted | CheckFinished | Diagnosed | Fingerprinted


def run(plan: Plan) -> Generator[Event]:
    """Run the checks of a plan one after the other, all or up to the first failure.

    Parameters
    ----------
    plan : Plan
        Target, contract and checks.

    Yields
    ------
    Opened, CheckStarted, CheckFinished, Diagnosed, Fingerprinted
        As they happen; `Diagnosed` only if a check failed, `Fingerprinted` only if that
        was asked for.

    Raises
    ------
    UsageError
        If the target, the contract or an option cannot be used.
    """
    session = Session(plan)
    try:
        yield Opened(session.plan, session.notes)
        yield from _run_checks(session)
        if session.broken and plan.diagnose:
            yield Diagnosed(session.diagnosis())
        if plan.fingerprint and session.alive:
            yield Fingerprinted(session.fingerprint())
    finally:
        session.close()


def _run_checks(session: Session) -> Iterator[Event]:
    plan, checks = session.plan, session.plan.chosen()
    with _spread(session, checks) as ask:
        for position, check in enumerate(checks):
            yield CheckStarted(check.name, position, len(checks))
            result = session.result(check, ask)
            yield CheckFinished(result)
            if plan.fail_fast and result.verdict in ("failed", "error"):
                break


@contextmanager
def _spread(session: Session, checks: Sequence[Check]) -> Iterator[Ask | None]:
    """Spread the checks over processes, if there is a target to call."""
    if not session.alive:
        yield None
        return
    with Spread(session.plan, checks, session.judge) as spread:
        yield spread.judgement
