"""Run the checks: one loop that yields events, and prints nothing."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from linkern.testing.checks import Check
from linkern.testing.checks.findings import Tally, Violation
from linkern.testing.diagnosis.diagnose import Diagnosis, diagnose
from linkern.testing.diagnosis.fingerprint import Fingerprint, fingerprint
from linkern.testing.errors import TargetDied, TargetRaised, UsageError
from linkern.testing.problems.context import Scope
from linkern.testing.runner.first_call import first_call
from linkern.testing.runner.jobs import MOST_HANGS, Spread
from linkern.testing.runner.judging import Judgement, failed, judge, result_of
from linkern.testing.runner.opening import open_target, scope_of
from linkern.testing.runner.plan import Plan
from linkern.testing.runner.reproduce import command
from linkern.testing.runner.results import CheckResult
from linkern.testing.runner.trials import Death
from linkern.testing.target.process import Target

__all__ = [
    "CheckFinished",
    "CheckStarted",
    "Diagnosed",
    "Event",
    "Fingerprinted",
    "Opened",
    "open_target",
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
    target = open_target(plan)
    try:
        start = first_call(plan, target)
        yield Opened(start.plan, start.notes)
        if start.death is None:
            yield from _run_checks(start.plan, target)
        else:
            yield from _died_at_once(start.plan, target, start.death)
    finally:
        target.close()


def _run_checks(plan: Plan, target: Target) -> Iterator[Event]:
    checks = plan.chosen()
    hangs = 0
    broken: list[str] = []  # dtypes in which there is something to explain
    with Spread(plan, checks, partial(judge, plan, target)) as spread:
        for position, check in enumerate(checks):
            yield CheckStarted(check.name, position, len(checks))
            give_up = hangs >= MOST_HANGS
            judgement = _given_up(check) if give_up else spread.judgement(check)
            hangs += judgement.hung
            broken += judgement.broken
            result = _expected(judgement, plan.expect_failure.get(check.name))
            yield CheckFinished(replace(result, again=command(plan, check.name)))
            if plan.fail_fast and result.verdict in ("failed", "error"):
                break
    scopes = [scope_of(plan, target, dtype) for dtype in dict.fromkeys(broken)]
    if scopes and plan.diagnose and not hangs:
        yield Diagnosed(_diagnosed(target, scopes))
    if plan.fingerprint and not hangs:
        scope = scope_of(plan, target, plan.dtypes[0])
        yield Fingerprinted(_fingerprinted(target, scope))


def _died_at_once(plan: Plan, target: Target, death: Death) -> Iterator[Event]:
    """Report a target that did not survive its first call, once."""
    checks = plan.chosen()
    problem, reason = death.problem, death.error.reason
    tally = Tally(examples=1, asked=1, problem=problem, calls=[death.call])
    last = Violation(f"the target {reason} on its first call", problem)
    judgements = [Judgement(failed(checks[0], tally, last, target, died=True))]
    message = f"not run: {checks[0].name} reports that the target {reason}"
    for check in checks[1:]:
        result = result_of(check, "covered", Tally(), message)
        judgements.append(Judgement(result, covered=True))
    for position, judgement in enumerate(judgements):
        name = judgement.result.name
        yield CheckStarted(name, position, len(checks))
        result = _expected(judgement, plan.expect_failure.get(name))
        yield CheckFinished(replace(result, again=command(plan, name)))


def _fingerprinted(target: Target, scope: Scope) -> Fingerprint | None:
    try:
        return fingerprint(target, scope)
    except UsageError as error:
        return Fingerprint.of_nothing(scope.dtype, str(error))
    except (TargetDied, TargetRaised):
        return None  # the checks say what it does instead


def _diagnosed(target: Target, scopes: Sequence[Scope]) -> Diagnosis | None:
    """Look for the cause in the dtypes that failed, until one shows it."""
    for scope in scopes:
        try:
            diagnosis = diagnose(target, scope)
        except (TargetDied, TargetRaised):
            continue
        except Exception as error:  # the verdicts stand without their cause
            sentence = f"could not be looked for: the referee failed with {error!r}"
            return Diagnosis("unknown", sentence, float("nan"))
        if diagnosis is not None:
            return diagnosis
    return None


def _given_up(check: Check) -> Judgement:
    message = f"not run: the target did not return {MOST_HANGS} times before"
    return Judgement(CheckResult(check.name, check.statement, "error", message=message))


def _expected(judgement: Judgement, reason: str | None) -> CheckResult:
    """Turn an expected failure into xfailed, and its absence into a failure.

    A check that is covered by an earlier one may fail for another reason, too.
    """
    result = judgement.result
    if reason is None:
        return result
    if result.verdict == "failed" or judgement.covered:
        message = f"{result.message} (expected: {reason})"
        return replace(result, verdict="xfailed", message=message)
    message = (
        f"expected to fail ({reason}), but it is {result.verdict}; "
        "remove the expectation"
    )
    return replace(result, verdict="failed", message=message)
