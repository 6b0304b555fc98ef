"""Running the checks: one loop that yields events, and prints nothing."""

import time
import traceback
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.errors import Flaky, Unsatisfiable

from linkern.testing.checks import Check
from linkern.testing.contract import nearest
from linkern.testing.errors import TargetDied, UsageError
from linkern.testing.frameworks import framework_named, numpy_dtype
from linkern.testing.judging import Tally, Trial, Violation
from linkern.testing.operators import OPERATORS
from linkern.testing.plan import PROFILES, Plan
from linkern.testing.problem import Scope
from linkern.testing.process import ChildProcess, InProcess, Target
from linkern.testing.report import CheckResult, Counterexample
from linkern.testing.worker import Environment

__all__ = ["CheckFinished", "CheckStarted", "Event", "run"]

# A target that hangs on everything costs this many timeouts, not one for every check.
MOST_HANGS = 2


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


Event = CheckStarted | CheckFinished


def run(plan: Plan) -> Iterator[Event]:
    """Run the checks of a plan one after the other.

    Parameters
    ----------
    plan : Plan
        What to run.

    Yields
    ------
    CheckStarted, CheckFinished
        As they happen.

    Raises
    ------
    UsageError
        If the target, the contract or an option cannot be used.
    """
    supported = framework_named(plan.framework).dtypes
    for dtype in plan.dtypes:
        if dtype not in supported:
            raise UsageError(nearest(f"dtype for {plan.framework}", dtype, supported))
        numpy_dtype(dtype)
    where = Environment(
        plan.target, plan.framework, plan.device, plan.contract.layout, plan.options
    )
    target: Target
    if plan.in_process or plan.function is not None:
        target = InProcess(where, plan.function)
    else:
        target = ChildProcess(where, plan.timeout)
    try:
        yield from _run_checks(plan, target)
    finally:
        target.close()


def _run_checks(plan: Plan, target: Target) -> Iterator[Event]:
    checks = plan.chosen()
    hangs = 0
    for position, check in enumerate(checks):
        yield CheckStarted(check.name, position, len(checks))
        began = time.perf_counter()
        if hangs >= MOST_HANGS:
            message = f"not run: the target did not return {MOST_HANGS} times before"
            result = _result(check, "error", Tally(), message)
        else:
            result, hung = _run_check(plan, check, target)
            hangs += hung
        result = _expected(result, plan.expect_failure.get(check.name))
        seconds = round(time.perf_counter() - began, 3)
        yield CheckFinished(replace(result, seconds=seconds))


def _run_check(plan: Plan, check: Check, target: Target) -> tuple[CheckResult, bool]:
    """Run one check on every dtype; return its verdict and whether the target hung."""
    total = Tally()
    for dtype in plan.dtypes:
        scope = Scope(
            OPERATORS[plan.op],
            plan.contract,
            dtype,
            exposes=target.exposes - set(plan.options),
            few_shapes=framework_named(plan.framework).compiles,
        )
        reason = check.unsupported(scope)
        if reason is not None:
            return _result(check, "unsupported", total, reason), False
        try:
            _search(plan, check, scope, target, total)
        except Violation as violation:
            return _failed(check, total, violation), False
        except TargetDied as death:
            assert total.problem is not None
            message = f"the target {death.reason}"
            last = Violation(message, total.problem)
            return _failed(check, total, last, died=True), death.hung
        except Flaky as flaky:
            found = _violation_inside(flaky)
            message = "the target is not deterministic: a violation did not repeat"
            if found is None:
                return _result(check, "failed", total, message), False
            found.message = f"{message} ({found.message})"
            return _failed(check, total, found), False
        except Unsatisfiable:
            message = "the contract leaves no input to try"
            return _result(check, "inconclusive", total, message), False
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            message = f"the referee failed: {error!r} ({where.name}:{where.lineno})"
            return _result(check, "error", total, message), False
    if total.bounded and not total.proved:
        message = "no error bound could be proved at the declared precision"
        return _result(check, "inconclusive", total, message), False
    message = "" if total.exact else "right, but not exact: it rounds between its sums"
    return _result(check, "passed", total, message), False


def _search(
    plan: Plan, check: Check, scope: Scope, target: Target, tally: Tally
) -> None:
    """Let Hypothesis look for a violation and shrink it."""
    trial = Trial(target, tally)
    # Each check and dtype draws its own inputs; all of them follow from one seed.
    name = f"{check.name}/{scope.dtype}/{plan.seed}"

    @seed(zlib.crc32(name.encode()))
    @settings(
        max_examples=PROFILES[plan.profile],
        deadline=None,
        database=None,
        print_blob=False,
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        phases=(Phase.generate, Phase.shrink) if plan.shrink else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(check.problems(scope))
    def example(problem: Any) -> None:
        tally.start()
        check.law(trial, problem)

    example()


def _violation_inside(error: BaseException) -> Violation | None:
    if isinstance(error, Violation):
        return error
    inner = getattr(error, "exceptions", ())
    causes = (error.__cause__, error.__context__)
    for candidate in (*inner, *causes):
        if candidate is not None:
            found = _violation_inside(candidate)
            if found is not None:
                return found
    return None


def _failed(
    check: Check, tally: Tally, violation: Violation, *, died: bool = False
) -> CheckResult:
    example = Counterexample.of(violation, tuple(tally.calls), died=died)
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
    )


def _expected(result: CheckResult, reason: str | None) -> CheckResult:
    """Turn an expected failure into xfailed, and its absence into a failure."""
    if reason is None:
        return result
    if result.verdict == "failed":
        message = f"{result.message} (expected: {reason})"
        return replace(result, verdict="xfailed", message=message)
    message = (
        f"expected to fail ({reason}), but it is {result.verdict}; "
        "remove the expectation"
    )
    return replace(result, verdict="failed", message=message)
