"""The grade of one candidate, as a function."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from linkern.testing.api import plan_of, report_of, reports
from linkern.testing.errors import UsageError
from linkern.testing.report.grade import Grade, grade_of
from linkern.testing.runner.plan import Plan
from linkern.testing.runner.rounds import rounds_of
from linkern.testing.spec.contract import Contract
from linkern.testing.target.clock import Clock
from linkern.testing.target.protocol import MEMORY_LIMIT

__all__ = ["grade", "grade_of_plan", "plan_of_candidate"]


def grade(
    target: str | Callable[..., Any],
    *,
    op: str,
    seconds: float = 20.0,
    contract: Mapping[str, Any] | Contract | None = None,
    framework: str | None = None,
    device: str = "cpu",
    dtypes: Sequence[str] = (),
    profile: str = "default",
    seed: int | None = None,
    checks: Sequence[str] = (),
    timeout: float = 20.0,
    memory_limit: float = MEMORY_LIMIT,
    jobs: int | None = None,
    options: Mapping[str, Any] | None = None,
    inputs: str | None = None,
    sandbox: bool = False,
) -> Grade:
    """Grade a kernel within a time.

    Every law gets a few examples before any gets many: the rounds are the profiles from
    "smoke" to `profile`, and the round in which a law breaks is the last. The clock
    decides how many laws are judged and with how many examples; it never decides a
    verdict of a law.

    Parameters
    ----------
    target : callable or str
        The kernel, or its name, ``package.module:attribute`` or
        ``path/to/file.py:attribute``. A name runs in a child process; a callable runs
        in this one, and a call of it that does not return is waited for.
    op : str
        Operator that it claims to be: a key of `linkern.testing.OPERATORS`.
    seconds : float
        Time of everything: loading, calls, checks, and the search for the cause. A
        single call may take half of it at most.
    contract, framework, device, dtypes, seed, checks, timeout, jobs, options, \
    inputs, sandbox
        As in `linkern.testing.verify`.
    profile : {"smoke", "quick", "default", "deep"}
        The last round.
    memory_limit : float
        GiB that the target may allocate; in a child process only.

    Returns
    -------
    Grade
        Verdict, score, cause and counterexample. A candidate that cannot be loaded or
        called is "refused", with a score of 0.

    Raises
    ------
    UsageError
        If the operator, the contract, the inputs or an option cannot be used.

    Examples
    --------
    >>> import numpy as np
    >>> def zeros(query, key, value):
    ...     return np.zeros_like(value)
    >>> one = grade(zeros, op="linear_attention", checks=["value_on_integers"])
    >>> one.verdict, one.score
    ('failed', 0.0)
    """
    clock = Clock(seconds)
    plan = plan_of_candidate(
        target,
        op=op,
        contract=contract,
        framework=framework,
        device=device,
        dtypes=dtypes,
        profile=profile,
        seed=seed,
        checks=checks,
        timeout=timeout,
        memory_limit=memory_limit,
        jobs=jobs,
        options=options or {},
        seconds=seconds,
        inputs=inputs,
        sandbox=sandbox,
    )
    return grade_of_plan(plan, clock)


def plan_of_candidate(target: str | Callable[..., Any], **options: Any) -> Plan:
    """Return the plan for a candidate, which does not choose its contract.

    Raises
    ------
    UsageError
        If an option cannot be used. Inputs that cannot be are no fault of a candidate.
    """
    plan = plan_of(target, read_defaults=False, **options)
    rounds_of(plan)
    return plan


def grade_of_plan(plan: Plan, clock: Clock) -> Grade:
    """Return the grade of the target of a plan; one that cannot be used is refused."""
    began, report = time.monotonic(), report_of(plan)
    try:
        for _, so_far in reports(plan, clock):
            report = so_far
    except UsageError as error:
        return Grade(
            plan.target,
            plan.op,
            "refused",
            message=str(error),
            seed=plan.seed,
            seconds=round(time.monotonic() - began, 3),
        )
    return grade_of(report, time.monotonic() - began)
