"""Rounds of a run: few examples of every law before many of any.

A round is a plan of its own, with a number of examples and a seed, so that what it
found is found again without a clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from linkern.testing.checks import Check
from linkern.testing.checks.workload import laws_of
from linkern.testing.errors import UsageError
from linkern.testing.problems.context import Scope
from linkern.testing.problems.workload import read_workload
from linkern.testing.runner.plan import PROFILES, Plan
from linkern.testing.runner.results import SEVERITY, CheckResult
from linkern.testing.spec.operators import OPERATORS

__all__ = ["Question", "Round", "merged", "rounds_of"]

# As `SEVERITY`, but a failure that was expected and seen outweighs one not seen yet.
_WEIGHTS = sorted(SEVERITY, key=("xfailed", "error", "failed").__contains__)


@dataclass(frozen=True, eq=False)
class Question:
    """A check in one round: the plan of the round says how it is asked."""

    plan: Plan
    check: Check

    @property
    def key(self) -> tuple[str, int, str]:
        """Inputs and seed of the round, and the check: no other question has these."""
        return self.plan.inputs or "", self.plan.seed, self.check.name


@dataclass(frozen=True)
class Round:
    """The checks that were judged with one number of examples and one seed.

    Parameters
    ----------
    profile, seed : str, int
        The options of `linkern verify` that judge it again; "inputs" for the file of
        inputs.
    judged, laws : int
        The checks that came to their end, of how many.
    """

    profile: str
    seed: int
    judged: int
    laws: int

    @property
    def complete(self) -> bool:
        """True if all checks came to their end."""
        return self.judged == self.laws


def rounds_of(plan: Plan) -> list[Plan]:
    """Return the plans of a run, one after the other.

    With `seconds` these are the profiles up to that of the plan, each with the seed
    after that of the round before; a counterexample is made small later, once. The
    round on `inputs` comes first.

    Examples
    --------
    >>> plan = Plan("kernels.py:kernel", "linear_attention", seconds=20.0, seed=7)
    >>> [(each.profile, each.seed) for each in rounds_of(plan)]
    [('smoke', 7), ('quick', 8), ('default', 9)]
    """
    if plan.inputs is not None:
        return [_on_inputs(plan, plan.inputs), *rounds_of(replace(plan, inputs=None))]
    if plan.seconds is None:
        return [plan]
    names = tuple(check.name for check in plan.chosen())
    profiles = [*PROFILES][: [*PROFILES].index(plan.profile) + 1]
    return [
        # Its checks are named: as a profile, "smoke" would leave some out.
        replace(plan, profile=name, seed=plan.seed + i, checks=names, shrink=False)
        for i, name in enumerate(profiles)
    ]


def _on_inputs(plan: Plan, name: str) -> Plan:
    """Return the round on a file of inputs: in its dtype, the laws that take it."""
    workload = read_workload(name, plan.op, plan.contract)
    scope = Scope(OPERATORS[plan.op], plan.contract, workload.dtype)
    laws = laws_of(workload, scope)
    names = tuple(check.name for check in plan.chosen() if check.name in laws)
    if not names:
        msg = f"`inputs` are judged by {', '.join(laws)}; name one of these checks."
        raise UsageError(msg)
    return replace(plan, checks=names, dtypes=(workload.dtype,), shrink=False)


def merged(results: Mapping[str, CheckResult], new: CheckResult) -> CheckResult:
    """Return the result of a check over all rounds: the worse verdict, all examples.

    A failure that is expected, and was seen in one round, need not be seen in another.
    """
    old = results.get(new.name)
    if old is None:
        return new
    worse = max(new, old, key=lambda each: _WEIGHTS.index(each.verdict))
    ratios = [x.worst_ratio for x in (old, new) if x.worst_ratio is not None]
    return replace(
        worse,
        examples=old.examples + new.examples,
        worst_ratio=max(ratios, default=None),
        seconds=round(old.seconds + new.seconds, 3),
        ratios=(*old.ratios, *new.ratios),
        curve=max(old.curve, new.curve, key=lambda curve: max(curve, default=-1.0)),
        dtypes=tuple(dict.fromkeys((*old.dtypes, *new.dtypes))),
    )
