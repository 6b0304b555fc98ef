"""Search for an input that breaks a law, and shrink it.

Hypothesis does both. A budget is added: shrinking stops after some examples, since a
call of the target may be expensive and a few hundred of them are enough.
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from unittest.mock import patch

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException
from hypothesis.internal.conjecture.engine import ConjectureRunner
from hypothesis.internal.conjecture.providers import HypothesisProvider

from linkern.testing.checks import Check
from linkern.testing.checks.assertions import CheckedTarget
from linkern.testing.checks.findings import Tally, Violation
from linkern.testing.errors import OutOfTime
from linkern.testing.problems import strategies as draws
from linkern.testing.problems.context import Scope
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.sharding import with_sharding
from linkern.testing.runner.plan import PROFILES, Plan
from linkern.testing.target.process import Target

__all__ = ["search"]

# Examples that may be drawn for each on which the law is judged.
DRAWN = 8
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
    """The law was judged often enough, or the budget for shrinking is spent."""


# Orders of calls: 0, to which others shrink, is the one that is written.
_ORDERS = st.integers(0, 2**16 - 1)


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
    wanted = max(check.least, round(check.share * PROFILES[plan.profile]))
    budget = max(LEAST_SHRINKING, round(check.share * SHRINKING))
    hunt = _Hunt(check, CheckedTarget(target, tally), tally, wanted, budget)
    # Hypothesis begins with small examples, a tenth of all, so it is told how many the
    # law needs, and asked again for those that it cannot judge.
    for part in range(DRAWN):
        if hunt.wanted:
            # Each check and dtype draws its own inputs; all follow from one seed.
            name = f"{check.name}/{scope.dtype}/{plan.seed}/{part}"
            start = int.from_bytes(sha256(name.encode()).digest())
            hunt.part = part
            _examples(hunt, check.problems(scope), start, wanted, shrink=plan.shrink)


@dataclass
class _Hunt:
    """The examples of a law: those that are wanted, and the smallest that breaks it.

    `wanted` counts the examples that are left, `budget` those that may be spent on
    making a counterexample smaller, and `part` the runs of Hypothesis. `failure` is an
    exception that is no violation: of the referee.
    """

    check: Check
    checked: CheckedTarget
    tally: Tally
    wanted: int
    budget: int
    best: tuple[Violation, Tally] | None = None
    part: int = 0
    failure: Exception | None = None

    def judge(self, problem: Problem, order: int) -> None:
        """Judge an example; raise the `Violation` that it shows."""
        if self.best:
            self.budget -= 1
        if self.budget < 0 or not (self.best or self.wanted):
            raise _Enough
        if self.part and not order and not self.best:
            return  # the simplest example of all, with which every part begins
        self.checked.begin(order, keeping=not self.best)
        try:
            if not self.check.judges(problem):
                self.checked.cover(problem)
                return
            self.wanted -= not self.best
            self.tally.count()
            self.check.law(self.checked, problem)
        except Violation as violation:
            if self.tally.repeats(violation.deviation):
                self.tally.lost += 1
                return
            # Hypothesis tries nothing that is not smaller, so the last is the smallest.
            self.best = violation, self.tally.snapshot()
            raise
        except HypothesisException:
            raise
        except Exception as error:
            # Hypothesis would repeat it, and the repetitions use up what is wanted.
            self.failure = error
            raise _Enough from None

    def conclude(self) -> None:
        """Raise the smallest `Violation`, or the failure of the referee, if any."""
        if self.failure is not None:
            raise self.failure
        if self.best:
            violation, calls = self.best
            self.tally.restore(calls)
            raise violation from None


def _examples(
    hunt: _Hunt,
    problems: st.SearchStrategy[Problem],
    start: int,
    count: int,
    *,
    shrink: bool,
) -> None:
    """Draw some examples from a seed; raise the smallest `Violation`."""

    @seed(start)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        print_blob=False,
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(with_sharding(draws.with_scale(problems)), _ORDERS)
    def example(problem: Problem, order: int) -> None:
        hunt.judge(problem, order)

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
    except _Enough:
        hunt.conclude()
    except OutOfTime:
        hunt.conclude()
        raise
