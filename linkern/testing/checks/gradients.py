"""Laws of the gradients: values, structure, agreement with finite differences."""

import numpy as np

from linkern.oracle import Bounded, unit_roundoff
from linkern.testing.checks.assertions import CheckedTarget
from linkern.testing.checks.findings import listed
from linkern.testing.checks.registry import (
    any_of,
    check,
    no_gradients,
    no_gradients_of_state,
    no_slopes,
    no_tangent,
    not_causal,
    not_float64,
    not_random,
)
from linkern.testing.checks.values import CONFIDENCE
from linkern.testing.problems import strategies as draws
from linkern.testing.problems.mixture import any_gradient, of_sort
from linkern.testing.problems.problem import Problem

__all__ = [
    "finite_differences",
    "gradient_identities",
    "gradient_of_state",
    "gradient_on_random_reals",
    "gradient_value",
    "require_gradients",
]


def require_gradients(
    target: CheckedTarget,
    problem: Problem,
    message: str,
    *,
    cuts: tuple[int, ...] = (),
    confidence: float | None = None,
) -> None:
    """Require gradients to be exact within their bounds; a message has their name."""
    gradients = target.gradients(problem, cuts=cuts)
    expected = problem.solve_gradients(confidence=confidence)
    for name, got in gradients.items():
        bounded = expected[name]
        text = message.format(name=name)
        axes = problem.scope.operator.input(name).axes
        target.require_within(got, bounded, problem, text, problem.scope.dtype, axes)


@check(
    "the gradients are the closed form's, within the proved bound of any order of "
    "summation; on integers with denominators that are powers of two they are dyadic",
    problems=any_gradient,
    unless=no_gradients,
    in_outputs=False,
    share=0.8,
    kind="gradient",
)
def gradient_value(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: a missing path through the normalizer, lost queries, narrow stages.

    Fix: Compare the backward pass, term by term, with that of `linkern.vjp`: numerator,
    normalizer, derivative of the feature map, scale, decays. The first wrong entry says
    which tokens a term lacks: loop backwards over the same chunks, a shorter last one
    included.
    """
    require_gradients(target, problem, "the gradient of the {name} is wrong")


@check(
    "on independent random draws the errors of gradients are independent too",
    problems=lambda scope: any_gradient(scope, "random gradients"),
    judges=of_sort("random gradients"),
    unless=any_of(no_gradients, not_random),
    share=0.4,
    in_outputs=False,
    kind="gradient",
)
def gradient_on_random_reals(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: outputs saved in less than declared, narrow sums over queries.

    Fix: Save what the backward pass reads in float32, or compute it again. Sum `dq`,
    `dk`, `dv` and the gradient of the state in float32, and round once.
    """
    message = "the error of the gradient of the {name} is larger than rounding makes it"
    require_gradients(target, problem, message, confidence=CONFIDENCE)


@check(
    "the output ignores the scale of a query, and that of all keys together: so the "
    "gradients are orthogonal to those directions",
    problems=any_gradient,
    unless=any_of(no_gradients, no_tangent),
    share=0.3,
    in_outputs=False,
    relation=True,
)
def gradient_identities(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: the path through the normalizer, epsilons; needs no reference.

    Fix: With o = N / d, the cotangent g gives dN = g / d and dd = -(g . o) / d, and
    both reach queries and keys. Look for the second term, and for an epsilon that the
    forward pass adds and the backward pass does not.
    """
    gradients = target.gradients(problem)
    expected = problem.solve_gradients()
    scope = problem.scope
    stored = unit_roundoff(scope.dtype)
    of_keys: tuple[int, ...] = (-2, -1)
    for name, feature_map, got, bounded, axes in (
        ("query", scope.query_map, gradients["query"], expected["query"], (-1,)),
        ("key", scope.key_map, gradients["key"], expected["key"], of_keys),
    ):
        assert feature_map.tangent is not None
        direction = feature_map.tangent(getattr(problem, name).astype(np.float64))
        along = (direction * got).sum(axis=axes, keepdims=True)
        # Where the derivative is not defined, nothing is known of the sum either.
        allowed = abs(direction) * (
            bounded.bound + stored * (abs(bounded.output) + bounded.bound)
        )
        bound = np.where(direction == 0, 0.0, allowed).sum(axis=axes, keepdims=True)
        message = f"the gradient of the {name} has a part that scales its features"
        exact = Bounded(np.zeros_like(along), bound)
        target.require_within(along, exact, problem, message, "float64")


@check(
    "gradients pass through the state: a sequence that was cut has those of the whole",
    problems=lambda scope: draws.with_cuts(any_gradient(scope)),
    unless=any_of(not_causal, no_gradients_of_state),
    share=0.4,
    in_outputs=False,
    kind="gradient",
)
def gradient_of_state(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: gradients of initial and final states missing, half missing or wrong.

    Fix: Start the backward recurrence from the cotangent of the final state, and return
    what it ends with as the gradient of the initial state. In PyTorch, neither detach a
    state nor update it in place.
    """
    cuts = problem.knobs["cuts"]
    if not cuts:
        return
    target.split(problem, cuts)
    message = f"the gradient of the {{name}}, cut at {listed(cuts)}, is wrong"
    require_gradients(target, problem, message, cuts=cuts)


def _smooth(problem: Problem) -> bool:
    """Return True if the output has a slope, and gates are not at their ends."""
    if problem.scope.operator.feature_map:
        return problem.sort in ("random gradients", "smooth gradients")
    return problem.sort == "smooth gradients"


@check(
    "gradients say how the output changes: they agree with differences of the target's "
    "own outputs",
    problems=lambda scope: any_gradient(scope, "smooth gradients"),
    judges=_smooth,
    unless=any_of(no_slopes, not_float64, no_gradients),
    share=0.15,
    in_outputs=False,
    relation=True,
)
def finite_differences(target: CheckedTarget, problem: Problem) -> None:
    """Reaches: gradients of another function than the one that is computed.

    Fix: The backward pass differentiates another function than the forward pass
    computes. Look for a scale, an epsilon, a normalisation or a form of the gates that
    only one of them has.
    """
    rng = np.random.default_rng(problem.length)
    for name, gradient in target.gradients(problem).items():
        direction = rng.choice([-1.0, 1.0], problem.inputs[name].shape)
        slope = float((gradient * direction).sum())
        message = f"the gradient of the {name} is not the slope of the output"
        expected = _slope(target, problem, name, direction)
        target.require_within(
            np.asarray([slope]), expected, problem, message, "float64"
        )


def _slope(
    target: CheckedTarget, problem: Problem, name: str, direction: np.ndarray
) -> Bounded:
    """Return the slope of the output along a direction of one input.

    Central differences at two steps: their difference is three times the error of the
    better one, to leading order, and so a safe estimate of it.
    """
    assert problem.cotangent is not None
    x, cotangent = problem.inputs[name], problem.cotangent
    quotients, noise = [], 0.0
    for h in (2.0**-12, 2.0**-13):
        ends = [problem.with_inputs(**{name: x + s * h * direction}) for s in (1, -1)]
        up, down = (float((cotangent * target.run(end)).sum()) for end in ends)
        quotients.append((up - down) / (2 * h))
        bounds = sum(float((abs(cotangent) * e.solve().bound).sum()) for e in ends)
        noise = max(noise, bounds / (2 * h))
    bound = abs(quotients[0] - quotients[1]) + noise
    return Bounded(np.asarray([quotients[1]]), np.asarray([bound]))
