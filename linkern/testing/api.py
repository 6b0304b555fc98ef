"""The referee as a function."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from linkern.testing.errors import UsageError
from linkern.testing.report.report import Report
from linkern.testing.runner.loop import (
    CheckFinished,
    Diagnosed,
    Event,
    Fingerprinted,
    Opened,
    Replayed,
    RoundStarted,
    Shrunk,
    TimeOver,
    run,
)
from linkern.testing.runner.plan import Plan
from linkern.testing.runner.results import CheckResult, environment
from linkern.testing.runner.rounds import Round, merged
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.declarations import nearest
from linkern.testing.target.clock import Clock
from linkern.testing.target.protocol import MEMORY_LIMIT

__all__ = ["plan_of", "report_of", "reports", "verify"]


def verify(
    target: str | Callable[..., Any],
    *,
    op: str,
    contract: Mapping[str, Any] | Contract | None = None,
    framework: str | None = None,
    device: str = "cpu",
    dtypes: Sequence[str] = (),
    profile: str = "default",
    seed: int | None = None,
    checks: Sequence[str] = (),
    expect_failure: Mapping[str, str] | None = None,
    timeout: float | None = None,
    memory_limit: float = MEMORY_LIMIT,
    in_process: bool = False,
    fingerprint: bool = False,
    fail_fast: bool = False,
    jobs: int | None = None,
    seconds: float | None = None,
    require: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    inputs: str | None = None,
    sandbox: bool = False,
    interpret: bool = False,
    ranks: Sequence[int] = (),
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
        Its declarations; undeclared means strictest.
    framework : str, optional
        Array library of its inputs. Default: inferred from its type, its annotations
        and its module, or else by a first call; the report says which, and why.
    device : str
        Device of its inputs.
    dtypes : sequence of str
        Dtypes of its inputs. Default: float32 and float64, as far as it takes them; the
        report says which one it refuses.
    profile : {"smoke", "quick", "default", "deep"}
        Number of examples; "smoke" has few laws, too.
    seed : int, optional
        Seed of the examples; the same seed gives the same verdict. Default: 64 bits of
        the operating system, which the report names.
    checks : sequence of str
        Names of the checks to run. Default: all.
    expect_failure : mapping, optional
        Checks that must fail, with the reason.
    timeout : float, optional
        Seconds that one call may take; in a child process only. Default: 20, or 120 if
        it is interpreted.
    memory_limit : float
        GiB that the target may allocate; in a child process only.
    in_process : bool
        Call a named target in this process.
    fingerprint : bool
        Measure the arithmetic of the target too.
    fail_fast : bool
        Leave out the checks after the first one that fails.
    jobs : int, optional
        Processes that run checks, each with a target of its own; the verdict is the
        same for any number. Default: one for each core, up to eight; one for a callable
        and for a target on a device.
    seconds : float, optional
        The time of the whole run: every law gets few examples before any gets many,
        and a failure ends it. Default: all examples of the profile.
    require : sequence of str
        Names of checks, or their number, without which nothing is concluded; what the
        time leaves out besides does not matter then.
    options : mapping, optional
        Keyword arguments of every call.
    inputs : str, optional
        A safetensors file with the inputs of one call, on which laws are judged first.
    sandbox : bool
        Run the process of a named target by bubblewrap: without network, other
        processes, and files that it could write to.
    interpret : bool
        Run the Triton kernels of a named target by Triton's interpreter, on a CPU.
    ranks : sequence of int
        The numbers of ranks that a named target of torch.distributed, or of
        `jax.shard_map`, runs on, each a process or a device with its shard of the
        tokens: it is judged as if it ran on one.

    Returns
    -------
    Report
        Verdict, checks and counterexamples; as text, as a page in a notebook, as files.

    Raises
    ------
    UsageError
        If the target, the contract or an option cannot be used, or if the target raises
        on its first call; the message says under which options it runs.

    Examples
    --------
    >>> import linkern
    >>> report = verify(
    ...     linkern.linear_attention,
    ...     op="linear_attention",
    ...     profile="quick",
    ...     checks=["value_on_integers", "causality"],
    ... )
    >>> report.verdict
    'passed'
    """
    plan = plan_of(
        target,
        op=op,
        contract=contract,
        framework=framework,
        device=device,
        dtypes=dtypes,
        profile=profile,
        seed=seed,
        checks=checks,
        expect_failure=expect_failure or {},
        timeout=timeout,
        memory_limit=memory_limit,
        in_process=in_process,
        fingerprint=fingerprint,
        fail_fast=fail_fast,
        jobs=jobs,
        seconds=seconds,
        require=require,
        options=options or {},
        inputs=inputs,
        sandbox=sandbox,
        interpret=interpret,
        ranks=ranks,
    )
    report = report_of(plan)
    for _, so_far in reports(plan):
        report = so_far
    return report


def plan_of(
    target: Any,
    *,
    op: str,
    contract: Mapping[str, Any] | Contract | None = None,
    **options: Any,
) -> Plan:
    """Return the plan of a run, from the arguments of `verify`.

    Raises
    ------
    UsageError
        If a name is unknown.
    """
    known = {field.name for field in fields(Plan)} - {"target", "op", "contract"}
    if options.get("seed") is None:
        options.pop("seed", None)
    for option in options:
        if option not in known:
            raise UsageError(nearest("option", option, known))
    for several in ("dtypes", "checks", "require", "ranks"):
        if several in options:
            options[several] = _tuple_of(several, options[several])
    if not isinstance(contract, Contract):
        contract = Contract.from_mapping(contract or {})
    if not (isinstance(target, str) or callable(target)):
        msg = (
            "`target` must be a function, or the name of one, "
            '"package.module:function" or "file.py:function", got '
            f"{type(target).__name__}."
        )
        raise UsageError(msg)
    function = None if isinstance(target, str) else target
    called = target if isinstance(target, str) else _name_of(target)
    return Plan(target=called, op=op, contract=contract, function=function, **options)


def _tuple_of(option: str, got: Any) -> tuple[Any, ...]:
    """Return what an option lists; a text is one name, not a list of letters."""
    if isinstance(got, str) or not isinstance(got, Iterable):
        msg = f"`{option}` must be a list, got {got!r}; write [{got!r}]."
        raise UsageError(msg)
    return tuple(got)


def reports(plan: Plan, clock: Clock | None = None) -> Iterator[tuple[Event, Report]]:
    """Run a plan, and yield each event with the report up to it.

    The report of the last event is complete; nothing found before an interruption is
    lost.
    """
    report = replace(report_of(plan), complete=False)
    events = run(plan, clock)
    try:
        for event in events:
            if isinstance(event, Opened):
                report = replace(report_of(event.plan), notes=event.notes)
            elif isinstance(event, CheckFinished):
                report = _with_result(report, event.result)
            elif isinstance(event, RoundStarted):
                on_inputs = event.plan.inputs is not None
                profile = "inputs" if on_inputs else event.plan.profile
                new = Round(profile, event.plan.seed, 0, event.laws)
                report = replace(report, rounds=(*report.rounds, new))
            elif isinstance(event, Shrunk | Replayed):
                report = _with_counterexample(report, event.result)
            elif isinstance(event, Diagnosed):
                report = replace(report, diagnosis=event.diagnosis)
            elif isinstance(event, Fingerprinted):
                report = replace(report, fingerprint=event.fingerprint)
            elif isinstance(event, TimeOver):
                report = replace(report, time_over=True)
            ended = report.stopped or report.time_over or not report.not_run
            report = replace(report, complete=ended)
            yield event, report
    finally:
        events.close()


def _with_result(report: Report, result: CheckResult) -> Report:
    """Return a report with what one more check, or a check once more, has shown."""
    checks = {check.name: check for check in report.checks}
    checks[result.name] = merged(checks, result)
    *before, last = report.rounds
    last = replace(last, judged=last.judged + 1)
    return replace(report, checks=tuple(checks.values()), rounds=(*before, last))


def _with_counterexample(report: Report, result: CheckResult) -> Report:
    """Return a report with another counterexample of a check, or what it has shown."""
    checks = (
        replace(
            check,
            counterexample=result.counterexample,
            message=result.message,
            again=result.again,
        )
        if check.name == result.name
        else check
        for check in report.checks
    )
    return replace(report, checks=tuple(checks))


def report_of(plan: Plan) -> Report:
    """Return the empty report of a plan before its first check."""
    where = environment(
        framework=plan.framework,
        device=plan.device,
        dtypes=list(plan.dtypes),
        profile=plan.profile,
        seed=plan.seed,
    )
    return Report(plan, environment=where)


def _name_of(function: Any) -> str:
    module = getattr(function, "__module__", None) or "?"
    return f"{module}:{getattr(function, '__qualname__', type(function).__name__)}"
