"""The referee as a function."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from linkern.testing.contract import Contract
from linkern.testing.plan import Plan
from linkern.testing.report import CheckResult, Report, environment
from linkern.testing.runner import CheckFinished, run

__all__ = ["report_of", "verify"]


def verify(
    target: str | Callable[..., Any],
    *,
    op: str,
    contract: Mapping[str, Any] | Contract | None = None,
    framework: str = "numpy",
    device: str = "cpu",
    dtypes: Sequence[str] = ("float32", "float64"),
    profile: str = "default",
    seed: int = 0,
    checks: Sequence[str] = (),
    expect_failure: Mapping[str, str] | None = None,
    timeout: float = 20.0,
    in_process: bool = False,
) -> Report:
    """Judge a kernel.

    Parameters
    ----------
    target : callable or str
        The kernel, called as ``f(query, key, value)``; or its name,
        ``package.module:attribute`` or ``path/to/file.py:attribute``. A callable runs
        in this process, a name in a child process unless `in_process`.
    op : str
        Operator that it claims to be: a key of `linkern.testing.OPERATORS`.
    contract : Contract or mapping, optional
        What it declares; undeclared means strictest.
    framework, device : str
        Array library and device of its inputs.
    dtypes : sequence of str
        Dtypes of its inputs.
    profile : {"quick", "default", "deep"}
        How many examples are tried.
    seed : int
        Which examples are tried; the same seed gives the same verdict.
    checks : sequence of str
        Names of the checks to run. Default: all.
    expect_failure : mapping, optional
        Checks that must fail, with the reason.
    timeout : float
        Seconds that one call may take; in a child process only.
    in_process : bool
        Call a named target in this process.

    Returns
    -------
    Report
        Verdict, checks and counterexamples.

    Raises
    ------
    UsageError
        If the target, the contract or an option cannot be used.

    Examples
    --------
    >>> import linkern
    >>> report = verify(
    ...     linkern.linear_attention, op="linear_attention", profile="quick"
    ... )
    >>> report.verdict
    'passed'
    """
    if not isinstance(contract, Contract):
        contract = Contract.from_mapping(contract or {})
    plan = Plan(
        target=target if isinstance(target, str) else _name_of(target),
        op=op,
        contract=contract,
        framework=framework,
        device=device,
        dtypes=tuple(dtypes),
        profile=profile,
        seed=seed,
        checks=tuple(checks),
        expect_failure=expect_failure or {},
        timeout=timeout,
        in_process=in_process,
        function=None if isinstance(target, str) else target,
    )
    events = run(plan)
    results = [event.result for event in events if isinstance(event, CheckFinished)]
    return report_of(plan, results)


def report_of(plan: Plan, results: Sequence[CheckResult]) -> Report:
    """Return the report of a plan whose checks gave `results`."""
    where = environment(
        framework=plan.framework,
        device=plan.device,
        dtypes=list(plan.dtypes),
        profile=plan.profile,
        seed=plan.seed,
    )
    declared = plan.contract.declared()
    return Report(plan.target, plan.op, declared, where, tuple(results))


def _name_of(function: Any) -> str:
    module = getattr(function, "__module__", None) or "?"
    return f"{module}:{getattr(function, '__qualname__', type(function).__name__)}"
