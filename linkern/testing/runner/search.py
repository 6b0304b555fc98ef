"""Search for an input that breaks a law, and shrink it.

Hypothesis does both. A budget is added: shrinking stops after some examples, since a
call of the target may be expensive and a few hundred of them are enough.
"""

from hashlib import sha256
from typing import Any
from unittest.mock import patch

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.internal.conjecture.engine import ConjectureRunner
from hypothesis.internal.conjecture.providers import HypothesisProvider

from linkern.testing.checks import Check
from linkern.testing.checks.assertions import CheckedTarget
from linkern.testing.checks.findings import Tally, Violation
from linkern.testing.errors import OutOfTime
from linkern.testing.problems import strategies as draws
from linkern.testing.problems.context import Scope
from linkern.testing.runner.plan import PROFILES, Plan
from linkern.testing.target.process import Target

__all__ = ["search"]

# Examples that may be spent on making a counterexample smaller.
SHRINKING = 200
LEAST_SHRINKING = 25


def _no_constant(*drawn: Any, **options: Any) -> None:
    """Draw no number that stands in some module, as Hypothesis does now and then.

    Which modules are loaded differs between a shell, a notebook and a worker; with
    this, inputs follow from the seed alone.
    """
    del drawn, options


def _no_copies(*runner: Any) -> None:
    """Make no example from parts of another one, as Hypothesis does five times of six.

    Copies are alike in what they reach: some seeds would draw no long sequence at all.
    """
    del runner


class _Enough(BaseException):
    """The budget for shrinking is spent."""


def search(
    plan: Plan, check: Check, scope: Scope, target: Target, tally: Tally
) -> None:
    """Try the examples of one check in one dtype; raise the smallest `Violation`.

    Parameters
    ----------
    plan : Plan
        Profile and seed.
    check : Check
        The law, and the strategy that can reach its violations.
    scope : Scope
        Operator, contract and dtype of all examples.
    target : Target
        Loaded target.
    tally : Tally
        Counts examples; afterwards it holds the calls of the violation.
    """
    checked = CheckedTarget(target, tally)
    # Each check and dtype draws its own inputs; all of them follow from one seed.
    name = f"{check.name}/{scope.dtype}/{plan.seed}"
    budget = max(LEAST_SHRINKING, round(check.share * SHRINKING))
    best: list[tuple[Violation, Tally]] = []
    spent = 0

    @seed(int.from_bytes(sha256(name.encode()).digest()))
    @settings(
        max_examples=max(check.least, round(check.share * PROFILES[plan.profile])),
        deadline=None,
        database=None,
        print_blob=False,
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        phases=(Phase.generate, Phase.shrink) if plan.shrink else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(draws.with_scale(check.problems(scope)))
    def example(problem: Any) -> None:
        nonlocal spent
        if best:
            spent += 1
            if spent > budget:
                raise _Enough
        tally.start()
        try:
            check.law(checked, problem)
        except Violation as violation:
            if tally.repeats(violation.deviation):
                tally.lost += 1
                return
            # Hypothesis tries nothing that is not smaller, so the last is the smallest.
            best[:] = [(violation, tally.snapshot())]
            raise

    try:
        with (
            patch.object(
                HypothesisProvider, "_maybe_draw_constant", _no_constant, create=True
            ),
            patch.object(
                ConjectureRunner, "generate_mutations_from", _no_copies, create=True
            ),
        ):
            example()
    except (_Enough, OutOfTime):
        if not best:
            raise
        violation, calls = best[0]
        tally.restore(calls)
        raise violation from None
