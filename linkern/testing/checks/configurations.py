"""Law of autotuned kernels: each configuration is one that some device takes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from linkern.testing.checks.assertions import CheckedTarget, Real, well_formed
from linkern.testing.checks.findings import Violation
from linkern.testing.checks.order import with_other_future
from linkern.testing.checks.registry import check, not_configured
from linkern.testing.checks.replies import (
    any_request,
    differing,
    first_wrong,
    observed,
)
from linkern.testing.errors import DoesNotApply, not_applicable
from linkern.testing.problems import strategies as draws
from linkern.testing.problems.context import Scope
from linkern.testing.problems.problem import Problem
from linkern.testing.target.protocol import Reply

__all__ = ["every_configuration"]

# Positions of configurations, taken modulo their number: each of few is as frequent.
POSITIONS = tuple(range(60))
# Of those that differ, the number in which a call is judged: on a device, where each is
# compiled once and a call takes no time, and interpreted.
COMPILED, INTERPRETED = 3, 1


def _problems(scope: Scope) -> st.SearchStrategy[Problem]:
    # Of few examples, none is left to what is handed from call to call.
    problems = draws.with_cut(any_request(scope, spans=False))
    return draws.with_choice(problems, position=POSITIONS)


@check(
    "an autotuned kernel is right in each of its configurations: outputs, states and "
    "gradients, the same bits in a second call, and no row of a later token",
    problems=_problems,
    unless=not_configured,
    share=0.5,
    in_outputs=False,
    relation=True,
    shown_by=("interpreted", "cuda"),
)
def every_configuration(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: tiles, tails and states that are right for some block sizes only.

    Fix: Look at what the configuration that is named changes: a grid that was computed
    from another block size, a mask for one tile, a state of the last chunk, a sum whose
    order depends on the programs. On some device an autotuner takes it.
    """
    usual = observed(target, problem)
    if usual.variants == 1:
        reason = "no kernel that ran has configurations that differ"
        raise DoesNotApply(not_applicable(reason))
    well_formed(usual, problem)
    if first_wrong(usual, problem):
        return  # as other laws say
    most = INTERPRETED if problem.scope.interpreted else COMPILED
    for step in range(min(most, usual.variants)):
        position = (problem.knobs["position"] + step) % usual.variants
        _require_right(_Chosen(target, position, usual), problem)


def _require_right(chosen: "_Chosen", problem: Problem) -> None:
    """Require right results in a configuration, the same twice, and causal ones."""
    reply, target = chosen.call(problem), chosen.target
    target.leave_out(reply.refused)
    wrong = first_wrong(reply, problem)
    if wrong is not None:
        blamed = chosen.blamed(reply, lambda call: first_wrong(call(problem), problem))
        message = f"the {wrong.name} is wrong in a configuration of {blamed}"
        got, expected = wrong.got, wrong.expected
        target.require_within(got, expected, problem, message, wrong.dtype)
    if reply.configurations != chosen.usual.configurations:
        _require_same_bits(chosen, reply, problem)
        _require_causal(chosen, reply, problem)


Ask = Callable[[Problem], Reply]


@dataclass(frozen=True)
class _Chosen:
    """Calls of a target in one configuration of its autotuned kernels.

    Parameters
    ----------
    target : CheckedTarget
        The target.
    position : int
        Position of the configuration among those that differ.
    usual : Reply
        Reply in the configuration that the autotuner takes.
    """

    target: CheckedTarget
    position: int
    usual: Reply

    def call(self, problem: Problem, tuned: str = "") -> Reply:
        """Call the target; only one kernel takes the configuration if it is named."""
        place: dict[str, Any] = {"configuration": self.position, "tuned": tuned}
        try:
            reply = observed(self.target, problem, **place)
            well_formed(reply, problem)
        except Violation as violation:
            count = f"{self.position + 1} of {self.usual.variants}"
            violation.message += f", in configuration {count} of its autotuned kernels"
            raise
        return reply

    def usually(self, problem: Problem) -> Reply:
        """Call the target in the configuration that the autotuner takes."""
        return observed(self.target, problem)

    def blamed(self, other: Reply, breaks: Callable[[Ask], object]) -> str:
        """Return the kernel whose configuration breaks a law, or all that differ.

        `breaks` is called with a function that calls the target.
        """
        before = self.usual.configurations
        differ = [x for x in other.configurations if x not in before]
        for kernel in differ if len(differ) > 1 else ():
            name = kernel.partition(" ")[0]
            if breaks(partial(self.call, tuned=name)):
                return kernel
        return " and ".join(differ)


def _require_same_bits(chosen: _Chosen, first: Reply, problem: Problem) -> None:
    """Require a second call in the configuration to give the same bits."""

    def changes(call: Ask) -> bool:
        return bool(differing(call(problem), call(problem), problem))

    name = differing(first, chosen.call(problem), problem)
    if not name or changes(chosen.usually):
        return  # the usual configuration `determinism` judges
    message = f"two calls with the same inputs differ in the {name}, in a configuration"
    message += f" of {chosen.blamed(first, changes)}"
    raise Violation(message, problem)


def _require_causal(chosen: _Chosen, first: Reply, problem: Problem) -> None:
    """Require another future to leave the rows before it as they are."""
    if not problem.scope.operator.causal:
        return
    cut = min(problem.knobs["cut"], problem.length - 1)
    changed = with_other_future(problem, cut)

    def leaks(call: Ask) -> bool:
        one, other = (_past(call(x), x, cut) for x in (problem, changed))
        return not np.array_equal(one, other, equal_nan=True)

    one, other = _past(first, problem, cut), _past(chosen.call(changed), changed, cut)
    if np.array_equal(one, other, equal_nan=True) or leaks(chosen.usually):
        return  # the usual configuration `causality` judges
    message = f"changing tokens from {cut} on changed an earlier output"
    message += f" in a configuration of {chosen.blamed(first, leaks)}"
    chosen.target.require_same(other, one, problem, message)


def _past(reply: Reply, problem: Problem, cut: int) -> Real:
    return well_formed(reply, problem)[..., :cut, :]
