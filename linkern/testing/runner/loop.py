"""Run the checks, round by round: one loop that yields events, and prints nothing."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from linkern.testing.checks.workload import judged_part
from linkern.testing.diagnosis.diagnosis import Diagnosis
from linkern.testing.errors import OutOfTime
from linkern.testing.fingerprint import Fingerprint
from linkern.testing.problems.context import Scope
from linkern.testing.problems.workload import read_workload
from linkern.testing.runner.jobs import Spread
from linkern.testing.runner.plan import Plan
from linkern.testing.runner.results import CheckResult
from linkern.testing.runner.rounds import Question, rounds_of
from linkern.testing.runner.session import Ask, Session
from linkern.testing.spec.operators import OPERATORS
from linkern.testing.target.clock import Clock

__all__ = [
    "CheckFinished",
    "CheckStarted",
    "Diagnosed",
    "Event",
    "Fingerprinted",
    "Opened",
    "Replayed",
    "RoundStarted",
    "Shrunk",
    "TimeOver",
    "run",
]


# Share of the time of a run that is kept for what follows a violation, a smaller
# counterexample and the cause: before there is one, and once there is one.
AFTER, ONCE_BROKEN = 0.1, 0.4
# Of that, the share of the cause.
CAUSE = 0.75


INTERPRETED = (
    "Triton's interpreter on a CPU: values, masks, tails, states and gradients are "
    "judged; races, memory fences, tf32, shared memory and the compiler are not"
)


@dataclass(frozen=True)
class Opened:
    """The target was called once; `plan` has the library and the dtypes judged.

    `notes` say which library was inferred, and which dtypes the target refuses.
    """

    plan: Plan
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class RoundStarted:
    """So many checks are about to run, with the examples and the seed of `plan`."""

    plan: Plan
    laws: int


@dataclass(frozen=True)
class CheckStarted:
    """A check is about to run."""

    name: str
    position: int
    total: int


@dataclass(frozen=True)
class CheckFinished:
    """A check has its verdict in this round."""

    result: CheckResult


@dataclass(frozen=True)
class Shrunk:
    """The first check that failed has the smallest counterexample that was found."""

    result: CheckResult


@dataclass(frozen=True)
class Replayed:
    """The wrong call of a counterexample was the first one of a new process."""

    result: CheckResult


@dataclass(frozen=True)
class Diagnosed:
    """The checks have run, some failed, and the search for a cause has ended."""

    diagnosis: Diagnosis | None


@dataclass(frozen=True)
class Fingerprinted:
    """The arithmetic of the target was measured, as far as that is possible."""

    fingerprint: Fingerprint | None


@dataclass(frozen=True)
class TimeOver:
    """The time of the run is over; what it was about to do is left out."""


Event = (
    Opened
    | RoundStarted
    | CheckStarted
    | CheckFinished
    | Shrunk
    | Replayed
    | Diagnosed
    | Fingerprinted
    | TimeOver
)


def run(plan: Plan, clock: Clock | None = None) -> Generator[Event]:
    """Run the checks of a plan one after the other, all or up to the first failure.

    A plan with `seconds` has several rounds; the one in which a check fails is the
    last. The run ends wherever it is when the time is over.

    Parameters
    ----------
    plan : Plan
        Target, contract and checks.
    clock : Clock, optional
        The time of the run. Default: that of the plan, from now on.

    Yields
    ------
    Event
        As they happen; `Diagnosed` only if a check failed, `Fingerprinted` only if that
        was asked for, `TimeOver` last if the time ended the run.

    Raises
    ------
    UsageError
        If the target, the contract or an option cannot be used.
    """
    try:
        yield from _run(plan, clock or Clock(plan.seconds))
    except OutOfTime:
        yield TimeOver()


def _run(plan: Plan, clock: Clock) -> Iterator[Event]:
    session = Session(plan, clock)
    try:
        yield Opened(session.plan, (*session.notes, *_of_plan(session.plan)))
        broken: list[Question] = []
        over = False
        try:
            with clock.without((plan.seconds or 0.0) * AFTER):
                yield from _run_rounds(session, clock, broken)
        except OutOfTime:
            over = True
        if broken and plan.seconds is not None and plan.shrink:
            with clock.without(max(0.0, CAUSE * clock.left)), suppress(OutOfTime):
                yield from _shrunk(session, broken[0])
        if session.broken and plan.diagnose:
            with suppress(OutOfTime):
                yield from _replayed(session, broken)
            yield Diagnosed(session.diagnosis())
            over |= clock.left <= 0  # what was measured until then is said
        if plan.fingerprint and session.alive:
            yield Fingerprinted(session.fingerprint())
        if over:
            yield TimeOver()
    finally:
        session.close()


def _of_plan(plan: Plan) -> Iterator[str]:
    """Yield the notes on an interpreter and on a file of inputs, if there are any."""
    if plan.interpret:
        yield INTERPRETED
    if plan.inputs is not None:
        workload = read_workload(plan.inputs, plan.op, plan.contract)
        scope = Scope(OPERATORS[plan.op], plan.contract, workload.dtype)
        yield judged_part(workload, scope)


def _run_rounds(
    session: Session, clock: Clock, broken: list[Question]
) -> Iterator[Event]:
    """Run rounds up to the first that breaks a law; add to `broken` what is so."""
    rounds = [
        [Question(plan, check) for check in plan.chosen()]
        for plan in rounds_of(session.plan)
    ]
    if session.plan.seconds is not None:
        # What is not judged takes no time, and is not among what the time leaves out.
        rounds = [sorted(each, key=session.applies) for each in rounds]
    with _spread(session, [one for each in rounds for one in each], clock) as ask:
        for questions in rounds:
            yield RoundStarted(questions[0].plan, len(questions))
            for position, question in enumerate(questions):
                yield CheckStarted(question.check.name, position, len(questions))
                more = (session.plan.seconds or 0.0) * (ONCE_BROKEN - AFTER)
                with clock.without(more if broken else 0.0):
                    result = session.result(question, ask)
                yield CheckFinished(result)
                if result.verdict in ("failed", "error"):
                    broken.append(question)
                    if session.plan.fail_fast:
                        return
            if broken and session.plan.seconds is not None:
                break


def _shrunk(session: Session, question: Question) -> Iterator[Event]:
    """Ask once more for a violation, this time for the smallest."""
    result = session.smallest(question)
    if result is not None:
        yield Shrunk(result)


def _replayed(session: Session, questions: Sequence[Question]) -> Iterator[Event]:
    """Ask in a new process for the violation of the first check that can tell."""
    result = session.replayed(questions)
    if result is not None:
        yield Replayed(result)


@contextmanager
def _spread(
    session: Session, questions: Sequence[Question], clock: Clock
) -> Iterator[Ask | None]:
    """Spread the checks over processes, if there is a target to call."""
    if not session.alive:
        yield None
        return
    with Spread(session.plan, questions, session.judge, clock) as spread:
        yield spread.judgement
