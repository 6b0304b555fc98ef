"""Checks of user kernels as tests in a user's test suite.

Every check of every kernel is one test, made from a plan: nothing is inherited, and
tests share nothing but the process of the target.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pytest
from rich.console import Console

from linkern.testing.api import plan_of
from linkern.testing.errors import UsageError
from linkern.testing.report import terminal
from linkern.testing.runner.plan import Plan, fresh_seed
from linkern.testing.runner.results import CheckResult
from linkern.testing.runner.shared import SHARED_SESSION, why_no_verdict
from linkern.testing.spec.contract import Contract

__all__ = [
    "Subject",
    "conclude",
    "examine",
    "explain",
    "judge",
    "parametrize_with_checks",
    "subject",
]


@dataclass(frozen=True)
class Subject:
    """A kernel under test.

    Parameters
    ----------
    name : str
        Name of its tests.
    plan : Plan
        Target and contract.
    """

    name: str
    plan: Plan


def subject(
    target: str | Callable[..., Any],
    *,
    op: str,
    contract: Mapping[str, Any] | Contract | None = None,
    name: str | None = None,
    **options: Any,
) -> Subject:
    """Name a kernel for `parametrize_with_checks`.

    Parameters
    ----------
    target : callable or str
        The kernel, or its name, as for `verify`: a callable runs in the process of the
        tests, a name in a child process.
    op : str
        Operator that it claims to be.
    contract : Contract or mapping, optional
        Its declarations.
    name : str, optional
        Name of its tests. Default: the name of the kernel.
    **options
        The other keyword arguments of `verify`.

    Returns
    -------
    Subject
        The kernel and its plan.

    Raises
    ------
    UsageError
        If an operator, a declaration, a check or an option is unknown.

    Examples
    --------
    >>> subject("my_package.ops:my_kernel", op="linear_attention").name
    'my_package.ops:my_kernel'
    >>> subject("my_package.ops:my_kernel", op="linear_attention", dtype="float32")
    Traceback (most recent call last):
        ...
    linkern.testing.errors.UsageError: unknown option "dtype"; did you mean "dtypes"?
    """
    if options.get("seed") is None:
        options["seed"] = _seed_of_process()
    plan = plan_of(target, op=op, contract=contract, **options)
    called = plan.target if plan.function is None else plan.target.split(":")[1]
    return Subject(name or called, plan)


@cache
def _seed_of_process() -> int:
    """Return one seed for all subjects: the canaries run once for each."""
    return fresh_seed()


def parametrize_with_checks(subjects: Sequence[Subject]) -> pytest.MarkDecorator:
    """Make one test for each check of each subject.

    Parameters
    ----------
    subjects : sequence of Subject
        Results of `subject`.

    Returns
    -------
    pytest.MarkDecorator
        A decorator of ``test(check)``, which calls ``check()``. The tests are called
        ``name-check``, so that ``-k`` selects a kernel or a law.

    Raises
    ------
    UsageError
        If there is no subject, or if two have the same name.

    Notes
    -----
    A law that is broken fails its test with the smallest input that shows it. A law
    that does not apply is skipped, with the reason; an inconclusive one fails. Checks
    in `expect_failure` are expected to fail, strictly.

    Examples
    --------
    >>> import linkern
    >>> ours = subject(linkern.linear_attention, op="linear_attention")
    >>> @parametrize_with_checks([ours])
    ... def test_laws(check):
    ...     check()
    """
    names = [_subject_name(one) for one in subjects]
    if not names:
        msg = "`subjects` must name at least one kernel, got none."
        raise UsageError(msg)
    for name in names:
        if names.count(name) > 1:
            msg = (
                f'`name` must be unique, got "{name}" twice; pass `name` to `subject`.'
            )
            raise UsageError(msg)
    tests = [
        pytest.param(
            partial(judge, one.plan, check.name), id=f"{one.name}-{check.name}"
        )
        for one in subjects
        for check in one.plan.chosen()
    ]
    return pytest.mark.parametrize("check", tests)


def judge(plan: Plan, name: str) -> None:
    """Run one check, and return, fail, skip or xfail."""
    conclude(plan, examine(plan, name))


def examine(plan: Plan, name: str) -> CheckResult:
    """Return the verdict of one check; fail if there can be none.

    Parameters
    ----------
    plan : Plan
        Target and contract.
    name : str
        The check.
    """
    doubt = why_no_verdict(plan.seed)
    if doubt is not None:
        pytest.fail(doubt, pytrace=False)
    try:
        return SHARED_SESSION.result(plan, name)
    except UsageError as error:
        pytest.fail(f"no verdict, {error}", pytrace=False)


def conclude(plan: Plan, result: CheckResult) -> None:
    """Return, fail, skip or xfail, as a verdict says; a failure has its cause."""
    if result.verdict == "passed":
        return
    if not result.applies:
        pytest.skip(result.message)
    if result.verdict == "xfailed":
        pytest.xfail(result.message)
    # An inconclusive check is no pass; and under --runxfail an xfailed one comes here.
    cause = SHARED_SESSION.cause(plan) if result.verdict == "failed" else None
    words = f"\ncause: {cause.sentence}" if cause is not None else ""
    pytest.fail(explain(plan, result) + words, pytrace=False)


def explain(plan: Plan, result: CheckResult) -> str:
    """Return a verdict as plain text: the law, the input, the command.

    Parameters
    ----------
    plan : Plan
        Target and contract.
    result : CheckResult
        One of its verdicts.
    """
    text = io.StringIO()
    # Lines are left whole: terminals and reports of tests break them on their own.
    console = Console(
        file=text,
        width=10_000,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
    )
    console.print(terminal.explained(plan, result))
    return text.getvalue().strip()


def _subject_name(one: Any) -> str:
    if not isinstance(one, Subject):
        msg = f"`subjects` must be made with `subject`, got {type(one).__name__}."
        raise UsageError(msg)
    return one.name
