"""Laws of the largest and smallest numbers, of NaN and of infinity."""

import numpy as np

from linkern.testing.checks.assertions import CheckedTarget
from linkern.testing.checks.findings import Violation
from linkern.testing.checks.registry import (
    any_of,
    check,
    no_nan_policy,
    not_linear_in_values,
)
from linkern.testing.checks.values import require_in_range
from linkern.testing.problems import strategies as draws
from linkern.testing.problems.mixture import any_problem, of_sort
from linkern.testing.problems.problem import Problem

__all__ = ["nan_policy", "ranges"]


@check(
    "within the range of the declared accumulator, features and values may be as large "
    "or small as they like: the output is finite and right",
    problems=lambda scope: any_problem(scope, "extremes"),
    judges=of_sort("extremes"),
    share=0.2,
)
def ranges(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: overflow to silent zeros or NaN, underflow, epsilons, thresholds.

    Fix: Find the intermediate that overflows where the result does not: a product of
    two denominators, a square, an exponential before its mask, a sum in float16. Divide
    earlier, mask earlier, or widen the accumulator.
    """
    output = target.run(problem)
    if not problem.scope.operator.feature_map:
        message = "the output at the ends of the range is wrong"
        target.require_within(output, problem.solve(), problem, message)
        return
    shared = problem.scope.contract.eps == 0 and problem.scope.contract.normalize
    if shared:
        require_in_range(target, output, problem)
    if "tiny" not in problem.kind or not shared:
        message = "the output at the ends of the range is wrong"
        target.require_within(output, problem.solve(), problem, message)


@check(
    "a NaN or an infinity in a value reaches every later output of its channel, and no "
    "other channel; nothing turns it into a number",
    problems=lambda scope: draws.with_choice(
        draws.with_cut(any_problem(scope, "random")), poison=(np.nan, np.inf, -np.inf)
    ),
    judges=of_sort("random"),
    unless=any_of(no_nan_policy, not_linear_in_values),
    share=0.3,
)
def nan_policy(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: `nan_to_num`, clipping, swallowed overflow, masks by multiplication.

    Fix: Remove `nan_to_num` and clamps of the output, and note that minimum and maximum
    drop a NaN on many devices. Mask with a select, never by a product with zero, since
    `0 * NaN` is NaN. If it does not matter, declare `nan_policy=any`.
    """
    causal = problem.scope.operator.causal
    token = min(problem.knobs["cut"], problem.shape.keys - 1)
    channel = token % problem.shape.value_dim
    poison = f"a {problem.knobs['poison']} in the value of token {token}"
    value = problem.value.copy()
    value[..., token, channel] = problem.knobs["poison"]
    poisoned = problem.with_inputs(value=value)
    output = target.run(poisoned)
    after = output[..., token if causal else 0 :, channel]
    if np.isfinite(after).any():
        message = f"{poison} became finite"
        raise Violation(message, poisoned)
    reached = ~np.isfinite(output)
    after = reached[..., token if causal else 0 :, channel]
    after[...] = False
    if problem.scope.contract.nan_policy != "strict":
        reached[..., channel] = False
    if not reached.any():
        return
    # What is not finite without the poison either, the poison did not reach.
    reached &= np.isfinite(target.run(problem))
    target.run(poisoned)
    if np.delete(reached, channel, axis=-1).any():
        message = f"{poison} reached other channels than {channel}"
        raise Violation(message, poisoned)
    if reached.any():
        message = f"{poison} reached the past"
        raise Violation(message, poisoned)
