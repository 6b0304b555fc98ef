"""Laws of the values: on integers, on reals, on random draws, on every shape."""

import numpy as np

from linkern.oracle import Bounded
from linkern.testing.checks.assertions import CheckedTarget
from linkern.testing.checks.registry import (
    check,
    not_normalised,
    not_random,
)
from linkern.testing.errors import Inapplicable, not_applicable
from linkern.testing.problems import strategies as draws
from linkern.testing.problems.context import Scope
from linkern.testing.problems.mixture import any_problem, exact, of_sort, provable
from linkern.testing.problems.problem import Problem

__all__ = [
    "CONFIDENCE",
    "dimensions",
    "long_sequences",
    "require_in_range",
    "row_normalisation",
    "value_on_integers",
    "value_on_random_reals",
    "value_on_reals",
]

# The lambda of the probabilistic tier. Over 16,700 runs of correct kernels in five
# orders of summation the largest that was needed is 1.4.
CONFIDENCE = 3.0


def _no_integers(scope: Scope) -> Inapplicable | None:
    """Require inputs with integer features, or sums that are exact."""
    reason = draws.no_integers(scope)
    return not_applicable(reason) if reason else None


@check(
    "on integers every order of summation is exact, so no key can get lost in rounding",
    problems=lambda scope: any_problem(scope, "integers"),
    judges=exact,
    unless=_no_integers,
)
def value_on_integers(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: lost, doubled or misplaced keys, masks, tails, narrow stages.

    Fix: The smallest length that fails says where to look: one token more than the
    chunk is its edge, a length that is no multiple of the tile is the tail, two tokens
    are the mask at the diagonal. Every key must be added exactly once, to the scores
    inside the chunk or to the state between chunks.
    """
    output = target.run(problem)
    message = "the output on integers is wrong"
    target.require_within(output, problem.solve(), problem, message)


@check(
    "on reals the output is within the proved bound of any order of summation",
    problems=any_problem,
    judges=provable,
)
def value_on_reals(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: undeclared precision, approximate division, truncation, instability.

    Fix: Accumulate products in float32 or wider, round once, at the store, and form
    decays as exponentials of sums, not as quotients. `linkern fingerprint` measures
    which stage loses bits. If a stage is narrow on purpose, declare it, for instance
    `operand_dtype=tfloat32`.
    """
    output = target.run(problem)
    message = "the error exceeds the proved bound"
    target.require_within(output, problem.solve(), problem, message)


@check(
    "on independent random draws rounding errors are independent too: the error stays "
    "within 3 sqrt(h) units, not h",
    problems=lambda scope: any_problem(scope, "random"),
    judges=of_sort("random"),
    unless=not_random,
    share=0.5,
)
def value_on_random_reals(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: undeclared precision that the proved bound is too wide to see.

    Fix: Keep the state between chunks and the sums of log-decays in float32, also where
    inputs are narrower. `linkern fingerprint` measures which stage loses bits. If a
    stage is narrow on purpose, declare it, for instance `state_dtype=bfloat16`.
    """
    output = target.run(problem)
    message = "the error is larger than rounding makes it on random inputs"
    expected = problem.solve(confidence=CONFIDENCE)
    target.require_within(output, expected, problem, message)


@check(
    "the weights of a row sum to one: equal values come back unchanged, and no output "
    "leaves the range of the values it averages",
    problems=lambda scope: any_problem(scope, "averages"),
    judges=of_sort("averages", "reals", "random"),
    unless=not_normalised,
    share=1.2,
)
def row_normalisation(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: epsilons, clamps, wrong or stale normalizers, padding that counts.

    Fix: Divide by the sum of the very weights that multiply the values, over the same
    keys. No epsilon is needed: positive features have a positive sum. If an epsilon or
    a clamp is meant, declare `eps` and `eps_mode`.
    """
    output = target.run(problem)
    if "constant values" in problem.kind:
        # Whatever the features are, both sums see the same ones, so the error of the
        # feature map cancels and the bound stays sharp where features are tiny; unless
        # a declared epsilon makes the quotient depend on their size.
        shared = problem.scope.contract.eps == 0
        expected = problem.solve(shared_features=shared)
        message = "equal values do not come back unchanged"
        target.require_within(output, expected, problem, message)
        return
    require_in_range(target, output, problem)


def require_in_range(
    target: CheckedTarget, output: np.ndarray, problem: Problem
) -> None:
    """Require every output to lie in the range of the values that it averages."""
    low, high = _hull(problem)
    rounding = _relative_rounding(problem) * np.maximum(abs(low), abs(high))
    nearest = Bounded(np.clip(output, low, high), rounding)
    message = "the output leaves the range of the values"
    target.require_within(output, nearest, problem, message)


def _hull(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Return the least and greatest value that each row averages, with 0 for an eps."""
    value = problem.value.astype(np.float64)
    if problem.scope.operator.causal:
        low = np.minimum.accumulate(value, axis=-2)
        high = np.maximum.accumulate(value, axis=-2)
    else:
        rows = problem.shape.of("bgtv")
        low = np.broadcast_to(value.min(axis=-2, keepdims=True), rows)
        high = np.broadcast_to(value.max(axis=-2, keepdims=True), rows)
    if problem.scope.contract.eps:
        low, high = np.minimum(low, 0), np.maximum(high, 0)
    return low, high


def _relative_rounding(problem: Problem) -> np.ndarray:
    """Return the bound for equal values of one: how far rounding moves an average."""
    ones = problem.with_inputs(value=np.ones_like(problem.value))
    return ones.solve(shared_features=True).bound


@check(
    "the dimensions of keys and values are free: above one tile, not powers of two, "
    "K != V",
    problems=lambda scope: any_problem(scope, "tiles"),
    judges=of_sort("tiles"),
    share=0.2,
)
def dimensions(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: channels past a tile, strides by the other dimension, masks of lanes.

    Fix: Mask loads and stores by the real K and V, loop over the tiles of channels
    where one tile does not hold them all, and take every stride from its own array. If
    only some dimensions are supported, refuse the others and declare `key_dims` and
    `value_dims`.
    """
    output = target.run(problem)
    message = f"the output is wrong for K={problem.shape.key_dim} "
    message += f"V={problem.shape.value_dim}"
    target.require_within(output, problem.solve(), problem, message)


@check(
    "thousands of tokens are no different: the error grows no faster than the bound",
    problems=lambda scope: any_problem(scope, "long"),
    judges=of_sort("long"),
    share=0.1,
)
def long_sequences(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: sums that saturate, indices that wrap, decay by rounding.

    Fix: Compute offsets in 64 bits, sum in float32 or wider, and take powers of a decay
    over one chunk, not over the whole sequence. If the length is limited, refuse longer
    sequences and declare `max_length`.
    """
    output = target.run(problem)
    message = "the output on a long sequence is wrong"
    confidence = None if not_random(problem.scope) else CONFIDENCE
    expected = problem.solve(confidence=confidence)
    target.require_within(output, expected, problem, message)
