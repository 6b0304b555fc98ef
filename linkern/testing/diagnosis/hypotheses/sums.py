"""Sums over weighted pairs, with the gauges that bound anyone's error in them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import (
    Bounded,
    Evaluation,
    Precisions,
    Quotient,
    Sums,
    bounded_output,
)
from linkern.testing.diagnosis.hypotheses.pairs import Real
from linkern.testing.problems.problem import Problem

__all__ = ["Scores", "WeightedSums", "quotient_of", "scored", "weighted_sums"]

# Multiplications that OpenBLAS leaves to one thread.
_BLOCK = 2**18


@dataclass(frozen=True)
class Scores:
    """Scores ``(..., T, S)``, their gauge, and what errors of features come to."""

    exact: Real
    gauge: Real
    slack: Real | None


@dataclass(frozen=True)
class WeightedSums:
    """Numerators and, in the last column, the denominator of every row.

    Parameters
    ----------
    exact, gauge, slack : array (..., T, V + 1)
        Sums, the same over absolute values, and the share of admitted errors.
    keys : array (T, 1)
        How many keys each row sums over.
    """

    exact: Real
    gauge: Real
    slack: Real
    keys: Real


def scored(query: Bounded, key: Bounded) -> Scores:
    """Return the scores of features with their admitted errors."""
    keys, error = (np.swapaxes(x, -1, -2) for x in (key.output, key.bound))
    scores = gauge = _product(query.output, keys)
    if (query.output < 0).any() or (keys < 0).any():
        gauge = _product(abs(query.output), abs(keys))
    if not query.bound.any() and not error.any():
        return Scores(scores, gauge, None)
    slack = _product(query.bound, abs(keys) + error)
    return Scores(scores, gauge, slack + _product(abs(query.output), error))


def weighted_sums(
    scores: Scores, value: Real, counts: Real, weighs: Real
) -> WeightedSums:
    """Return the sums of values ``(..., S, V)`` and of weights.

    Each pair counts ``counts (T, S)`` times in the numerator, and ``weighs (T, S)``
    times in the denominator.
    """
    sizes, dims = abs(value), value.shape[-1]
    ones = np.ones((*value.shape[:-1], 1))
    both = np.concatenate([value, sizes, ones], axis=-1)
    summed = _summed(scores.exact, counts, weighs, both)
    exact, gauge = np.delete(summed, np.s_[dims:-1], -1), summed[..., dims:]
    columns = both[..., dims:]
    if scores.gauge is not scores.exact or (counts < 0).any() or (weighs < 0).any():
        gauge = _summed(scores.gauge, abs(counts), abs(weighs), columns)
    slack = np.zeros_like(gauge)
    if scores.slack is not None:
        slack = _summed(scores.slack, abs(counts), abs(weighs), columns)
    keys = ((counts != 0) | (weighs != 0)).sum(-1, keepdims=True)
    return WeightedSums(exact, gauge, slack, np.maximum(keys, 1).astype(np.float64))


def quotient_of(
    problem: Problem,
    query: Bounded,
    sums: WeightedSums,
    quotient: Quotient,
    precisions: Precisions,
    rows: NDArray[np.int64] | None = None,
) -> Bounded:
    """Return the output that sums come to, divided by the denominators of `rows`."""
    of_query = [
        x.sum(-1, keepdims=True) for x in (query.output, abs(query.output), query.bound)
    ]
    denominators = [x[..., -1:] for x in (sums.exact, sums.gauge, sums.slack)]
    keys = sums.keys
    if rows is not None:
        of_query = [x[..., rows, :] for x in of_query]
        denominators = [x[..., rows, :] for x in denominators]
        keys = np.maximum(keys, keys[rows])
    denominator, gauge, slack = denominators
    nothing = np.zeros(0)
    evaluation = Evaluation(
        Sums(
            sums.exact[..., :-1],
            denominator,
            query_sum=of_query[0],
            query_gauge=of_query[1],
            query_slack=of_query[2],
            feature_dim=query.output.shape[-1],
        ),
        sums.gauge[..., :-1],
        gauge,
        sums.slack[..., :-1],
        slack,
        keys,
        nothing,
        nothing,
        nothing,
    )
    chunk_size = problem.scope.contract.chunk_size
    return bounded_output(evaluation, quotient, precisions, chunk_size=chunk_size)


def _summed(scores: Real, counts: Real, weighs: Real, columns: Real) -> Real:
    """Return the sums over columns, the last of which is that of the weights."""
    summed = _product(counts * scores, columns)
    if weighs is not counts:
        summed[..., -1] = (weighs * scores).sum(-1)
    return summed


def _product(x: Real, y: Real) -> Real:
    """Multiply matrices in blocks of rows that BLAS starts no threads for.

    Threads that wait for a busy core cost a hundred times more than they save.
    """
    rows = max(1, _BLOCK // (x.shape[-1] * y.shape[-1]))
    firsts = range(0, x.shape[-2], rows)
    blocks = [x[..., first : first + rows, :] @ y for first in firsts]
    return np.concatenate(blocks, axis=-2) if len(blocks) != 1 else blocks[0]
