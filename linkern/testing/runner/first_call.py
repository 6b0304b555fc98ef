"""First call of a target: what it refuses is one sentence, before any check.

A target that raises on a small valid input in every dtype would fail every check alike;
the sentence says what it raised, and what to type.
"""

from dataclasses import dataclass, replace

from linkern.testing.errors import UsageError
from linkern.testing.runner.plan import DEFAULT_DTYPES, Plan
from linkern.testing.runner.remedies import frameworks, remedy
from linkern.testing.runner.trials import (
    Death,
    Trials,
    Tried,
    groups_values,
    refusal_of_no_token,
    returns_state,
    tried,
)
from linkern.testing.spec.operators import OPERATORS
from linkern.testing.target.inference import Inferred
from linkern.testing.target.process import Target

__all__ = ["FirstCall", "first_call"]

RETURNS_STATE = (
    "it takes no state and returns one, which is judged; if it is something else, "
    "declare returns_state=false"
)
VALUE_GROUPS = (
    "it takes more heads of values than of queries, which is judged; if it is not to, "
    "declare value_groups=false"
)
UNTRIED_GROUPS = (
    "more heads of values than of queries are not judged; if it takes them, "
    "declare value_groups=true"
)
NO_TOKEN = (
    "sequences of no token are not judged: the target raises {}; "
    "declare min_length=0 to judge them"
)
UNDER_JIT = (
    "called under `jax.jit`, as its users call it; as it is where that cannot trace "
    "it, or a loop is unrolled to a long program"
)


@dataclass(frozen=True)
class FirstCall:
    """Result of the first call in each dtype.

    Parameters
    ----------
    plan : Plan
        The plan with the array library and the dtypes that are judged.
    notes : tuple of str
        The library that was inferred, and each dtype that the target refuses.
    death : Death or None
        The crash or hang of its first call.
    """

    plan: Plan
    notes: tuple[str, ...] = ()
    death: Death | None = None


def first_call(plan: Plan, target: Target) -> FirstCall:
    """Call a target once in each dtype, and settle what its plan leaves open.

    Parameters
    ----------
    plan : Plan
        With or without a library and dtypes.
    target : Target
        Its target, loaded; it is opened again if another library suits it.

    Returns
    -------
    FirstCall
        The plan to judge, and what to tell the reader.

    Raises
    ------
    UsageError
        If the target raises in every dtype, or in one that the plan names; the sentence
        has the likely fix. A plan that expects failures is judged all the same.
    """
    inferred = target.opened.inferred
    settled = replace(plan, framework=target.opened.library.name)
    notes: tuple[str, ...] = ()
    if plan.framework is None and settled.framework != "numpy":
        notes = (f"arrays of {settled.framework}, inferred: {inferred.reason}",)
    outcome, trials = tried(settled, target), Trials(settled, target)
    if _fails(outcome, plan) and not outcome.accepted:
        others = _others(plan, outcome, trials, inferred)
        if plan.framework is None and len(others) == 1:
            notes = (_changed(settled, outcome, others[0]),)
            settled, others = replace(settled, framework=others[0]), []
            outcome = trials.of(settled)
        if not outcome.accepted:
            _refuse(settled, outcome, trials, others)
            outcome = trials.of(settled)
    here = plan.function is not None or plan.in_process
    if settled.framework == "jax" and not (inferred.compiled or here or plan.ranks):
        notes += (UNDER_JIT,)
    if _returns_state(settled, target, outcome):
        contract = replace(settled.contract, returns_state=True)
        settled = replace(settled, contract=contract)
        notes += (RETURNS_STATE,)
    if _may_group_values(settled, outcome):
        elsewhere = plan.ranks or plan.command or plan.interpret or plan.device != "cpu"
        if elsewhere:  # a call costs much there, or may read what is not its own
            notes += (UNTRIED_GROUPS,)
        elif groups_values(settled, target, outcome.accepted[0]):
            contract = replace(settled.contract, value_groups=True)
            settled = replace(settled, contract=contract)
            notes += (VALUE_GROUPS,)
    if refusal := _refusal_of_no_token(settled, target, outcome):
        settled = replace(settled, contract=replace(settled.contract, min_length=1))
        notes += (NO_TOKEN.format(refusal),)
    if _fails(outcome, plan) and outcome.accepted:
        notes += _left_out(plan, outcome)
        return FirstCall(replace(settled, dtypes=outcome.accepted), notes)
    dtypes = plan.dtypes or DEFAULT_DTYPES
    return FirstCall(replace(settled, dtypes=dtypes), notes, outcome.death)


def _returns_state(plan: Plan, target: Target, outcome: Tried) -> bool:
    """Return True for a function that takes no state, says nothing of one, returns one.

    Programs and targets over ranks declare what they do with states.
    """
    declared = {plan.contract.takes_state, plan.contract.returns_state} != {None}
    if declared or target.interface.takes_state or plan.ranks or plan.command:
        return False
    return outcome.problem is not None and returns_state(target, outcome.problem)


def _refusal_of_no_token(plan: Plan, target: Target, outcome: Tried) -> str:
    """Return what a target raises on no token, if its lengths are not declared.

    Over ranks it is declared whether one may have no token.
    """
    declared = plan.contract.min_length is not None or plan.contract.max_length == 0
    steps = plan.contract.interface == "step"
    if declared or steps or plan.ranks or not outcome.accepted:
        return ""
    assert outcome.problem is not None
    return refusal_of_no_token(target, outcome.problem)


def _may_group_values(plan: Plan, outcome: Tried) -> bool:
    """Return True if heads that share queries are defined, and are not declared."""
    contract = plan.contract
    axes = {*"".join(one.axes for one in OPERATORS[plan.op].inputs)}
    grouped = {"g", "h"} <= axes and "h" in contract.layout
    return grouped and contract.value_groups is None and bool(outcome.accepted)


def _fails(outcome: Tried, plan: Plan) -> bool:
    """Return True for a refusal that the plan does not expect."""
    return bool(outcome.refused) and outcome.death is None and not plan.expect_failure


def _others(
    plan: Plan, outcome: Tried, trials: Trials, inferred: Inferred
) -> list[str]:
    """Return the libraries on whose arrays a target runs, or the only likely one."""
    if plan.interpret or plan.ranks:  # there is no other
        return []
    likely = (inferred.name, *inferred.others)
    possible = [*frameworks(plan, outcome.refusal, likely)]
    run = [name for name in possible if trials.runs(replace(plan, framework=name))]
    return run or (possible if plan.framework is None and len(possible) == 1 else [])


def _refuse(plan: Plan, outcome: Tried, trials: Trials, others: list[str]) -> None:
    """Raise with what would help, unless the plainest input is accepted."""
    sentence = _choice(others) if others else remedy(plan, outcome.refusal, trials)
    if sentence is None:
        return
    where, _, _ = repr(outcome.problem).partition(",")
    msg = f'"{plan.target}" {outcome.refusal} on its first call ({where}).\n{sentence}'
    raise UsageError(msg)


def _left_out(plan: Plan, outcome: Tried) -> tuple[str, ...]:
    """Return what is left out of a plan that names no dtypes; refuse any other."""
    if plan.dtypes:
        dtype, said = next(iter(outcome.refused.items()))
        alone = " ".join(f"--dtype {one}" for one in outcome.accepted)
        msg = (
            f'"{plan.target}" {said} on its first call in {dtype}.\n'
            f"It runs on {' and '.join(outcome.accepted)}: judge that with `{alone}`."
        )
        raise UsageError(msg)
    return tuple(
        f"{dtype} is not judged: the target {said}"
        for dtype, said in outcome.refused.items()
    )


def _changed(plan: Plan, outcome: Tried, name: str) -> str:
    """Return the note on a library that the first calls found."""
    others = f"it takes none of {plan.framework} ({outcome.refusal})"
    return f"arrays of {name}, inferred: {others}"


def _choice(names: list[str]) -> str:
    if len(names) == 1:
        return (
            f"It runs on arrays of {names[0]}: judge it with `--framework {names[0]}`."
        )
    listed = " or ".join(f"`--framework {name}`" for name in names)
    return f"It runs on arrays of {' and of '.join(names)}: say which with {listed}."
