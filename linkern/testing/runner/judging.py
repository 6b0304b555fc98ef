"""Judge one check: search for a violation in every dtype, and word the verdict."""

import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hypothesis.errors import Flaky, Unsatisfiable

from linkern.testing.checks import Check
from linkern.testing.checks.findings import Tally, Violation
from linkern.testing.checks.workload import on_workload
from linkern.testing.errors import (
    INAPPLICABLE,
    DoesNotApply,
    Inapplicable,
    TargetDied,
    covered,
    skipped,
)
from linkern.testing.problems.context import Scope
from linkern.testing.problems.workload import read_workload
from linkern.testing.runner.opening import scope_of
from linkern.testing.runner.plan import Plan
from linkern.testing.runner.results import CheckResult, Counterexample
from linkern.testing.runner.search import search
from linkern.testing.target.process import Target

__all__ = ["Judgement", "failed", "judge", "result_of"]

# The share of comparisons that may be without a bound: in operators that erase, a few
# inputs let errors grow from token to token, at any precision. Where a narrow one is
# declared, none may be, for a fault could hide where the declaration ends all proof.
# Where time was for a few comparisons alone, one of them is no share; others must tell.
MOST_UNPROVED, FEW_PROVED = 0.1, 3


@dataclass(frozen=True)
class Judgement:
    """Result of one check, and what later checks must know.

    Parameters
    ----------
    result : CheckResult
        The verdict.
    hung : bool
        True if the target did not return.
    broken : tuple of str
        The dtypes in which the law is violated.
    before, reported : mapping of str to str
        By deviation, the check that reported it first: of the checks before this one,
        and with this one.
    covered : bool
        True if it met a deviation that an earlier check has reported.
    """

    result: CheckResult
    hung: bool = False
    broken: tuple[str, ...] = ()
    before: Mapping[str, str] = field(default_factory=dict)
    reported: Mapping[str, str] = field(default_factory=dict)
    covered: bool = False


def judge(
    plan: Plan, target: Target, check: Check, reported: Mapping[str, str]
) -> Judgement:
    """Judge one check of a plan.

    Parameters
    ----------
    plan : Plan
        Dtypes, profile and seed.
    target : Target
        Loaded target.
    check : Check
        The law.
    reported : mapping of str to str
        By deviation, the earlier check that reported it.
    """
    began = time.perf_counter()
    tally, broken = Tally(reported=dict(reported)), dict[str, Scope]()
    result, hung = _run_check(plan, check, target, broken, tally)
    seconds = round(time.perf_counter() - began, 3)
    return Judgement(
        replace(result, seconds=seconds),
        hung,
        tuple(broken),
        dict(reported),
        tally.reported,
        covered=bool(tally.repeated),
    )


def _run_check(
    plan: Plan, check: Check, target: Target, broken: dict[str, Scope], total: Tally
) -> tuple[CheckResult, bool]:
    """Run one check on every dtype; return its verdict and whether the target hung."""
    reasons: dict[str, Inapplicable] = {}  # why it is not judged, by dtype
    for dtype in plan.dtypes:
        scope, asked = scope_of(plan, target, dtype), check
        if plan.inputs is not None:
            workload = read_workload(plan.inputs, plan.op, plan.contract)
            asked = on_workload(check, workload, scope)
        reason = asked.unless(scope) or plan.leaves_out(asked)
        if reason is not None:
            reasons[dtype] = reason
            continue
        before = replace(total)
        try:
            search(plan, asked, scope, target, total)
            _require_examined(total, before)
        except Violation as violation:
            broken[dtype] = scope
            if violation.deviation:
                total.reported.setdefault(violation.deviation, check.name)
            return failed(check, total, violation, target), False
        except DoesNotApply as exception:
            reasons[dtype] = exception.why
        except TargetDied as death:
            assert total.problem is not None
            message = f"the target {death.reason}"
            last = Violation(message, total.problem)
            return failed(check, total, last, target, died=True), death.hung
        except Flaky as flaky:
            inner = _violation_inside(flaky)
            if inner is None:
                message = "the target is not deterministic: a violation did not repeat"
                return result_of(check, "failed", total, message), False
            inner.message += ", in some repetitions of the calls and not in others"
            return failed(check, total, inner, target), False
        except Unsatisfiable:
            message = "no example was run: the contract leaves no input to try"
            return result_of(check, "inconclusive", total, message), False
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            message = f"the referee failed: {error!r} ({where.name}:{where.lineno})"
            return result_of(check, "error", total, message), False
    return _unbroken(plan, check, total, reasons), False


def _unbroken(
    plan: Plan, check: Check, total: Tally, reasons: Mapping[str, Inapplicable]
) -> CheckResult:
    """Return the result of a check without a violation of its own."""
    if total.repeated:
        return result_of(check, "covered", total, _covered(total))
    if len(reasons) == len(plan.dtypes):
        return _not_judged(check, total, reasons)
    judged = tuple(dtype for dtype in plan.dtypes if dtype not in reasons)
    unproved = total.bounded - total.proved
    one = int(total.proved >= FEW_PROVED)
    most = 0 if plan.contract.narrows else max(one, MOST_UNPROVED * total.bounded)
    if unproved > most:
        message = (
            f"{_unproved(total)} no error bound could be proved at the declared "
            "precision"
        )
        result = result_of(check, "inconclusive", total, message)
        return replace(result, dtypes=judged)
    return replace(result_of(check, "passed", total, _noted(total)), dtypes=judged)


def _noted(total: Tally) -> str:
    """Return what a law that is kept does not say of the target."""
    if total.refused:
        count, listed = len(total.refused), "; ".join(sorted(total.refused))
        return f"left out, as the device cannot hold them: {count} ({listed})"
    if total.proved < total.bounded:
        return f"{_unproved(total)} no bound is proved: errors can grow"
    return "" if total.exact else "right, but not exact: it rounds between its sums"


def _unproved(total: Tally) -> str:
    return f"in {total.bounded - total.proved} of {total.bounded} comparisons"


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
    result = result_of(check, kind, total, message)
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
        raise DoesNotApply(covered(f"{reason}: {total.judged_by} says so"))


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


def failed(
    check: Check,
    tally: Tally,
    violation: Violation,
    target: Target,
    *,
    died: bool = False,
) -> CheckResult:
    """Return the result of a check that found a violation."""
    example = Counterexample.of(violation, tally, target.interface, died=died)
    return result_of(check, "failed", tally, violation.message, example)


def result_of(
    check: Check,
    verdict: str,
    tally: Tally,
    message: str,
    counterexample: Counterexample | None = None,
) -> CheckResult:
    """Return the result of a check with what was counted."""
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
