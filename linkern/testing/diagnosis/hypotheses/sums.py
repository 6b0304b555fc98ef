"""Sums over weighted pairs, with the gauges that bound anyone's error in them."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import Bounded, Evaluation, Sums
from linkern.testing.diagnosis.hypotheses.pairs import Real

__all__ = ["Scores", "divided_by_rows", "scored", "weighted_sums"]

# Multiplications that OpenBLAS leaves to one thread.
_BLOCK = 2**18


@dataclass(frozen=True)
class Scores:
    """What features alone say of the sums, however often each pair counts.

    Parameters
    ----------
    exact, gauge : array (..., T, S)
        Scores, and the same sums over absolute values.
    slack : array (..., T, S) or None
        What the admitted errors of the features come to; None for nothing.
    signed, absolute, admitted : array (..., T, 1)
        Sums over the features of each query, over their sizes, and over their errors.
    feature_dim : int
        How many features there are.
    """

    exact: Real
    gauge: Real
    slack: Real | None
    signed: Real
    absolute: Real
    admitted: Real
    feature_dim: int


def scored(query: Bounded, key: Bounded) -> Scores:
    """Return the scores of features.

    Parameters
    ----------
    query, key : Bounded (..., T, K), (..., S, K)
        Features with their admitted errors.

    Returns
    -------
    Scores
        To be weighed by `weighted_sums`, in as many ways as there are.
    """
    exact, gauge, slack = _scores(query, key)
    signed, absolute, admitted = (
        x.sum(-1, keepdims=True) for x in (query.output, abs(query.output), query.bound)
    )
    feature_dim = query.output.shape[-1]
    return Scores(exact, gauge, slack, signed, absolute, admitted, feature_dim)


def weighted_sums(
    scores: Scores, value: Real, counts: Real, weighs: Real
) -> Evaluation:
    """Return the weighted sums of one call with their gauges and slacks.

    Parameters
    ----------
    scores : Scores
        Of queries and keys.
    value : array (..., S, V)
        Values.
    counts, weighs : array (T, S)
        How often each pair counts in the numerator and in the denominator.

    Returns
    -------
    Evaluation
        Sums without a state.
    """
    sizes = abs(value)
    exact, gauge = scores.exact, scores.gauge
    numerator, of_sizes, denominator = _sums(exact, counts, weighs, value, sizes)
    gauges = of_sizes, denominator
    if gauge is not exact or (counts < 0).any() or (weighs < 0).any():
        gauges = _sums(gauge, abs(counts), abs(weighs), sizes, sizes)[1:]
    slacks = np.zeros_like(of_sizes), np.zeros_like(denominator)
    if scores.slack is not None:
        slacks = _sums(scores.slack, abs(counts), abs(weighs), sizes, sizes)[1:]
    terms = ((counts != 0) | (weighs != 0)).sum(-1, keepdims=True)
    nothing = np.zeros(0)
    return Evaluation(
        Sums(
            numerator,
            denominator,
            scores.signed,
            scores.absolute,
            scores.admitted,
            scores.feature_dim,
        ),
        *gauges,
        *slacks,
        keys_seen=np.maximum(terms, 1).astype(np.float64),
        memory=nothing,
        memory_gauge=nothing,
        memory_slack=nothing,
    )


def divided_by_rows(sums: Evaluation, rows: NDArray[np.int64]) -> Evaluation:
    """Return sums with the denominators of other rows."""
    inner = sums.sums
    return replace(
        sums,
        sums=replace(
            inner,
            denominator=inner.denominator[..., rows, :],
            query_sum=inner.query_sum[..., rows, :],
            query_gauge=inner.query_gauge[..., rows, :],
            query_slack=inner.query_slack[..., rows, :],
        ),
        denominator_gauge=sums.denominator_gauge[..., rows, :],
        denominator_slack=sums.denominator_slack[..., rows, :],
        keys_seen=np.maximum(sums.keys_seen, sums.keys_seen[rows]),
    )


def _scores(a: Bounded, b: Bounded) -> tuple[Real, Real, Real | None]:
    """Return the scores ``(..., T, S)``, their gauge, and their slack if any."""
    key, key_error = (np.swapaxes(x, -1, -2) for x in (b.output, b.bound))
    scores = _product(a.output, key)
    gauge = scores
    if (a.output < 0).any() or (key < 0).any():
        gauge = _product(abs(a.output), abs(key))
    if not a.bound.any() and not key_error.any():
        return scores, gauge, None
    slack = _product(a.bound, abs(key) + key_error)
    return scores, gauge, slack + _product(abs(a.output), key_error)


def _sums(
    scores: Real, counts: Real, weighs: Real, value: Real, sizes: Real
) -> tuple[Real, Real, Real]:
    """Return the sums over values, over their sizes, and of the weights alone."""
    dims = value.shape[-1]
    ones = np.ones((*value.shape[:-1], 1))
    columns = np.concatenate([value, sizes, ones], axis=-1)
    counted = _product(counts * scores, columns)
    weight = counted[..., -1:]
    if weighs is not counts:
        weight = (weighs * scores).sum(-1, keepdims=True)
    return counted[..., :dims], counted[..., dims:-1], weight


def _product(x: Real, y: Real) -> Real:
    """Multiply matrices in blocks of rows that BLAS starts no threads for.

    Threads that wait for a busy core cost a hundred times more than they save.
    """
    rows = max(1, _BLOCK // (x.shape[-1] * y.shape[-1]))
    firsts = range(0, x.shape[-2], rows)
    blocks = [x[..., first : first + rows, :] @ y for first in firsts]
    return np.concatenate(blocks, axis=-2) if len(blocks) != 1 else blocks[0]
