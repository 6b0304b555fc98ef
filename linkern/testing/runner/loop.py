"""Run the checks: one loop that yields events, and prints nothing."""

import time
import traceback
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace

from hypothesis.errors import Flaky, Unsatisfiable

from linkern.testing.checks import Check
from linkern.testing.checks.findings import Tally, Violation
from linkern.testing.diagnosis.diagnose import Diagnosis, diagnose
from linkern.testing.diagnosis.fingerprint import Fingerprint, fingerprint
from linkern.testing.errors import (
    INAPPLICABLE,
    DoesNotApply,
    Inapplicable,
    TargetDied,
    TargetRaised,
    UsageError,
    covered,
    skipped,
)
from linkern.testing.problems.context import Scope
from linkern.testing.runner.first_call import first_call
from linkern.testing.runner.opening import open_target, scope_of
from linkern.testing.runner.plan import Plan
from linkern.testing.runner.reproduce import command
from linkern.testing.runner.results import CheckResult, Counterexample
from linkern.testing.runner.search import search
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
    "scope_of",
]

# A target that hangs on everything costs this many timeouts, not one for every check.
MOST_HANGS = 2


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
            yield from _not_run(start.plan, target, start.death)
    finally:
        target.close()


def _run_checks(plan: Plan, target: Target) -> Iterator[Event]:
    checks = plan.chosen()
    hangs = 0
    broken: dict[str, Scope] = {}  # by dtype: where there is something to explain
    reported: dict[str, str] = {}  # by deviation: the check that it broke first
    for position, check in enumerate(checks):
        yield CheckStarted(check.name, position, len(checks))
        began, tally = time.perf_counter(), Tally(reported=reported)
        if hangs >= MOST_HANGS:
            message = f"not run: the target did not return {MOST_HANGS} times before"
            result = _result(check, "error", tally, message)
        else:
            result, hung = _run_check(plan, check, target, broken, tally)
            hangs += hung
        reason = plan.expect_failure.get(check.name)
        result = _expected(result, reason, covered=bool(tally.repeated))
        seconds = round(time.perf_counter() - began, 3)
        again = command(plan, check.name)
        yield CheckFinished(replace(result, seconds=seconds, again=again))
        if plan.fail_fast and result.verdict in ("failed", "error"):
            break
    if broken and plan.diagnose and not hangs:
        yield Diagnosed(_diagnosed(target, broken))
    if plan.fingerprint and not hangs:
        scope = scope_of(plan, target, plan.dtypes[0])
        yield Fingerprinted(_fingerprinted(target, scope))


def _not_run(plan: Plan, target: Target, death: Death) -> Iterator[Event]:
    """Report a target that did not survive its first call, once."""
    checks = plan.chosen()
    problem, reason = death.problem, death.error.reason
    tally = Tally(examples=1, asked=1, problem=problem, calls=[death.call])
    last = Violation(f"the target {reason} on its first call", problem)
    results = [_failed(checks[0], tally, last, target, died=True)]
    message = f"not run: {checks[0].name} reports that the target {reason}"
    results += [_result(check, "covered", Tally(), message) for check in checks[1:]]
    for position, result in enumerate(results):
        yield CheckStarted(result.name, position, len(results))
        expectation = plan.expect_failure.get(result.name)
        finished = _expected(result, expectation, covered=position > 0)
        again = command(plan, result.name)
        yield CheckFinished(replace(finished, again=again))


def _fingerprinted(target: Target, scope: Scope) -> Fingerprint | None:
    try:
        return fingerprint(target, scope)
    except UsageError as error:
        return Fingerprint.of_nothing(scope.dtype, str(error))
    except (TargetDied, TargetRaised):
        return None  # the checks say what it does instead


def _diagnosed(target: Target, broken: dict[str, Scope]) -> Diagnosis | None:
    """Look for the cause in the dtypes that failed, until one shows it."""
    for scope in broken.values():
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


def _run_check(
    plan: Plan, check: Check, target: Target, broken: dict[str, Scope], total: Tally
) -> tuple[CheckResult, bool]:
    """Run one check on every dtype; return its verdict and whether the target hung."""
    reasons: dict[str, Inapplicable] = {}  # why it is not judged, by dtype
    for dtype in plan.dtypes:
        scope = scope_of(plan, target, dtype)
        reason = check.unless(scope)
        if reason is not None:
            reasons[dtype] = reason
            continue
        before = replace(total)
        try:
            search(plan, check, scope, target, total)
            _require_examined(total, before)
        except Violation as violation:
            broken[dtype] = scope
            if violation.deviation:
                total.reported.setdefault(violation.deviation, check.name)
            return _failed(check, total, violation, target), False
        except DoesNotApply as exception:
            reasons[dtype] = exception.why
        except TargetDied as death:
            assert total.problem is not None
            message = f"the target {death.reason}"
            last = Violation(message, total.problem)
            return _failed(check, total, last, target, died=True), death.hung
        except Flaky as flaky:
            inner = _violation_inside(flaky)
            message = "the target is not deterministic: a violation did not repeat"
            if inner is None:
                return _result(check, "failed", total, message), False
            inner.message = f"{message} ({inner.message})"
            return _failed(check, total, inner, target), False
        except Unsatisfiable:
            message = "no example was run: the contract leaves no input to try"
            return _result(check, "inconclusive", total, message), False
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            message = f"the referee failed: {error!r} ({where.name}:{where.lineno})"
            return _result(check, "error", total, message), False
    return _unbroken(plan, check, total, reasons), False


def _unbroken(
    plan: Plan, check: Check, total: Tally, reasons: Mapping[str, Inapplicable]
) -> CheckResult:
    """Return the result of a check without a violation of its own."""
    if total.repeated:
        return _result(check, "covered", total, _covered(total))
    if len(reasons) == len(plan.dtypes):
        return _not_judged(check, total, reasons)
    judged = tuple(dtype for dtype in plan.dtypes if dtype not in reasons)
    if total.proved < total.bounded:
        message = (
            "for some outputs no error bound could be proved at the declared precision"
        )
        result = _result(check, "inconclusive", total, message)
        return replace(result, dtypes=judged)
    message = "" if total.exact else "right, but not exact: it rounds between its sums"
    return replace(_result(check, "passed", total, message), dtypes=judged)


def _covered(tally: Tally) -> str:
    """Return why a check has no verdict: it met what earlier checks reported."""
    findings = " and ".join(
        f"{tally.reported[one]} reports it: {one}" for one in sorted(tally.repeated)
    )
    if tally.lost == tally.examples:
        return f"{findings}; nothing is left to judge"
    return f"{findings}; the law is kept wherever that is not met"


def _not_judged(
    check: Check, total: Tally, reasons: Mapping[str, Inapplicable]
) -> CheckResult:
    """Return the verdict of a law that is judged in no dtype, with every reason.

    What can be remedied in one dtype can be remedied; the least that does it is named.
    """
    said = dict.fromkeys(why.reason for why in reasons.values())
    message = next(iter(said))
    if len(said) > 1:
        message = "; ".join(f"{dtype}: {why.reason}" for dtype, why in reasons.items())
    hopeful = max(INAPPLICABLE.index(why.kind) for why in reasons.values())
    kind = INAPPLICABLE[hopeful]
    remedies = [why.remedies for why in reasons.values() if why.kind == kind]
    result = _result(check, kind, total, message)
    return replace(result, remedies=min(remedies, key=len))


def _require_examined(total: Tally, before: Tally) -> None:
    """Raise if a search tried no example, made no call, or compared too little."""
    tried = total.examples - before.examples
    if not tried:
        raise Unsatisfiable
    if total.asked == before.asked:
        raise DoesNotApply(skipped("the contract leaves nothing to compare"))
    wrong = total.covered - before.covered
    if 2 * wrong > tried:
        reason = f"a plain call is already wrong on {wrong} of {tried} inputs"
        raise DoesNotApply(covered(f"{reason}: value_on_reals says so"))


def _violation_inside(error: BaseException) -> Violation | None:
    if isinstance(error, Violation):
        return error
    inner = getattr(error, "exceptions", ())
    causes = (error.__cause__, error.__context__)
    for candidate in (*inner, *causes):
        if candidate is not None:
            violation = _violation_inside(candidate)
            if violation is not None:
                return violation
    return None


def _failed(
    check: Check,
    tally: Tally,
    violation: Violation,
    target: Target,
    *,
    died: bool = False,
) -> CheckResult:
    example = Counterexample.of(violation, tally, target.interface, died=died)
    return _result(check, "failed", tally, violation.message, example)


def _result(
    check: Check,
    verdict: str,
    tally: Tally,
    message: str,
    counterexample: Counterexample | None = None,
) -> CheckResult:
    return CheckResult(
        check.name,
        check.statement,
        verdict,
        tally.examples,
        tally.worst_ratio,
        counterexample,
        message,
        curve=tally.curve,
        ratios=tuple(tally.ratios),
    )


def _expected(result: CheckResult, reason: str | None, *, covered: bool) -> CheckResult:
    """Turn an expected failure into xfailed, and its absence into a failure.

    A check that is `covered` by an earlier one may fail for another reason, too.
    """
    if reason is None:
        return result
    if result.verdict == "failed" or covered:
        message = f"{result.message} (expected: {reason})"
        return replace(result, verdict="xfailed", message=message)
    message = (
        f"expected to fail ({reason}), but it is {result.verdict}; "
        "remove the expectation"
    )
    return replace(result, verdict="failed", message=message)
