r"""Gradients with terms that are missing, misplaced or narrowed.

With ``P_ij = g_i.v_j`` and ``r_i = g_i.o_i``, the gradients are sums over pairs,

    dL/da_i = sum_j (P_ij - r_i) b_j / D_i,      dL/db_j = sum_i (P_ij - r_i) a_i / D_i,
    dL/dv_j = sum_i (a_i.b_j) g_i / D_i,

and a defect is a pair that does not count in one of these five sums. It can only make
the sums over absolute values smaller, so the proved bound of the operator's own
gradients holds for them too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from linkern.oracle import Bounded, feature_gradients
from linkern.testing.diagnosis.hypotheses.hypothesis import Deviation
from linkern.testing.diagnosis.hypotheses.pairs import Pairs, Real, Weights, seen
from linkern.testing.diagnosis.hypotheses.variant import features
from linkern.testing.problems.problem import Problem
from linkern.testing.spec.operators import INPUT_NAMES

__all__ = ["Pullback", "carry_back", "differentiate", "pullback"]

Rounding = Callable[[Real], Real]


@dataclass(frozen=True)
class Pullback:
    """The gradients of linear attention, part by part; each default is right.

    Parameters
    ----------
    query, query_divisor : callable
        The number of times that each pair counts in the gradient of queries, directly
        and through the divisor.
    key, key_divisor : callable
        The same for keys.
    value : callable
        The same for values, directly.
    saved : callable or None
        Rounding of the output before it is used again.
    slopes : tuple of str
        Inputs whose gradient goes through the feature map.
    """

    query: Weights = seen
    query_divisor: Weights = seen
    key: Weights = seen
    key_divisor: Weights = seen
    value: Weights = seen
    saved: Rounding | None = None
    slopes: tuple[str, ...] = ("query", "key")


def pullback(name: str, phrase: str, **parts: Any) -> Deviation:
    """Return the deviation that exchanges `parts` of a `Pullback`."""
    exchanged = Pullback(**parts)
    return Deviation(name, phrase, lambda problem: differentiate(problem, exchanged))


def differentiate(problem: Problem, exchanged: Pullback) -> Bounded:
    """Return the gradient of the input that the problem's parameter ``of`` names."""
    name, exact = problem.knobs["of"], problem.knobs["exact"]
    a, b, v, g = _operands(problem)
    pairs = Pairs(
        np.arange(a.shape[-2])[:, None],
        np.arange(b.shape[-2])[None, :],
        problem.scope.operator.causal,
        problem.knobs.get("cuts", ()),
    )
    quotient = problem.scope.contract.quotient(a.shape[-1])
    with np.errstate(all="ignore"):
        scores = quotient.scale * (a @ np.swapaxes(b, -1, -2))
        divisor, through = np.ones_like(a[..., :1]), np.zeros_like(a[..., :1])
        if quotient.normalize:
            divisor = (pairs.seen * scores).sum(-1, keepdims=True)
            output = (pairs.seen * scores) @ v / divisor
            if exchanged.saved is not None:
                output = exchanged.saved(output)
            through = (g * output).sum(-1, keepdims=True)
        direct, through = (
            g @ np.swapaxes(v, -1, -2),
            np.broadcast_to(through, scores.shape),
        )
        if name == "value":
            weights = exchanged.value(pairs) * scores / divisor
            return Bounded(np.swapaxes(weights, -1, -2) @ g, exact.bound)
        counts = exchanged.query, exchanged.query_divisor
        if name == "key":
            counts = exchanged.key, exchanged.key_divisor
        weights = counts[0](pairs) * direct - counts[1](pairs) * through
        weights = quotient.scale * weights / divisor
        gradient = weights @ b if name == "query" else np.swapaxes(weights, -1, -2) @ a
        if name not in exchanged.slopes:
            return Bounded(gradient, _before_slope(problem, name).bound)
        feature_map = getattr(problem.scope, f"{name}_map")
        x = problem.inputs[name].astype(np.float64)
        return Bounded(feature_map.pullback(x, gradient), exact.bound)


def carry_back(problem: Problem, rounding: Rounding, chunk: int) -> Bounded:
    """Return that gradient if the gradient of the state is rounded after each chunk."""
    name, exact = problem.knobs["of"], problem.knobs["exact"]
    a, b, v, g = _operands(problem)
    scale = problem.scope.contract.quotient(a.shape[-1]).scale
    ones = np.ones((*v.shape[:-1], 1))
    columns = np.concatenate([v, ones], axis=-1)
    with np.errstate(all="ignore"):
        scores = np.tril(scale * (a @ np.swapaxes(b, -1, -2)))
        cotangent = np.concatenate([g, np.zeros((*g.shape[:-1], 1))], axis=-1)
        if problem.scope.contract.normalize:
            divisor = scores.sum(-1, keepdims=True)
            through = (g * (scores @ v / divisor)).sum(-1, keepdims=True)
            cotangent = np.concatenate([g, -through], axis=-1) / divisor
        state = np.zeros((*b.shape[:-2], b.shape[-1], columns.shape[-1]))
        parts = []
        for first in reversed(range(0, b.shape[-2], chunk)):
            span = (..., slice(first, first + chunk), slice(None))
            a_c, b_c, v_c, g_c = (x[span] for x in (scale * a, b, columns, cotangent))
            if name == "key":
                inside = np.tril(g_c @ np.swapaxes(v_c, -1, -2))
                gradient = np.swapaxes(inside, -1, -2) @ a_c + v_c @ np.swapaxes(
                    state, -1, -2
                )
            else:
                inside = np.tril(a_c @ np.swapaxes(b_c, -1, -2))
                gradient = (np.swapaxes(inside, -1, -2) @ g_c + b_c @ state)[..., :-1]
            parts.append(gradient)
            state = rounding(state + np.swapaxes(a_c, -1, -2) @ g_c)
        gradient = np.concatenate(parts[::-1], axis=-2)
        if name == "key":
            x = problem.key.astype(np.float64)
            gradient = problem.scope.key_map.pullback(x, gradient)
    return Bounded(gradient, exact.bound)


def _operands(problem: Problem) -> tuple[Real, Real, Real, Real]:
    assert problem.cotangent is not None
    scope = problem.scope
    return (
        scope.query_map.value(problem.query.astype(np.float64)),
        scope.key_map.value(problem.key.astype(np.float64)),
        problem.value.astype(np.float64),
        problem.cotangent.astype(np.float64),
    )


def _before_slope(problem: Problem, name: str) -> Bounded:
    """Return the exact gradient of features."""
    scope = problem.scope
    query = features(problem, scope.query_map, problem.query.astype(np.float64))
    key = features(problem, scope.key_map, problem.key.astype(np.float64))
    _, _, v, g = _operands(problem)
    gradients = feature_gradients(
        query,
        key,
        v,
        g,
        scope.contract.quotient(problem.shape.key_dim),
        scope.contract.precisions(scope.dtype),
        causal=scope.operator.causal,
        output_dtype=scope.output_dtype,
    )
    return gradients[INPUT_NAMES.index(name)]
