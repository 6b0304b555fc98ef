"""Softmax attention over a subset of the keys, before the division.

A `Partial` holds the largest score of each query, the sum of the exponentials relative
to it, and the same sum over values. Under `combine`, partials of disjoint sets of keys
form a commutative monoid: blocks of keys, parts of a sparse pattern and rounds of
hashing are all reduced by it.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, cast

from linkern.array import device_of, namespace
from linkern.typing import Array

__all__ = ["Partial", "attend", "combine", "hidden", "quotient"]


class Partial(NamedTuple):
    """Softmax attention over some keys, before the division.

    Parameters
    ----------
    peak : array (..., T, 1)
        Largest score of each query; ``-inf`` if it sees no key.
    total : array (..., T, 1)
        Sum of ``exp(score - peak)``.
    weighted : array (..., T, V)
        Sum of ``exp(score - peak) value``.
    """

    peak: Array
    total: Array
    weighted: Array

    def output(self) -> Array:
        """Return the output: NaN, which is 0/0, for a query that sees no key."""
        return quotient(self.weighted, self.total)

    def mapped(self, change: Callable[[Array], Array]) -> "Partial":
        """Apply a rearrangement to all three parts."""
        return Partial(*map(change, self))


def attend(scores: Array, value: Array) -> Partial:
    """Return the softmax over all keys of `scores` ``(..., T, S)``, ``S > 0``."""
    xp = namespace(scores)
    peak = xp.max(scores, axis=-1, keepdims=True)
    weights = xp.exp(scores - _finite(peak))
    return Partial(peak, xp.sum(weights, axis=-1, keepdims=True), weights @ value)


def combine(first: Partial, second: Partial) -> Partial:
    """Return the softmax over the keys of both."""
    xp = namespace(first.peak, second.peak)
    peak = xp.maximum(first.peak, second.peak)
    reference = _finite(peak)
    shrink_first = xp.exp(first.peak - reference)
    shrink_second = xp.exp(second.peak - reference)
    return Partial(
        peak,
        first.total * shrink_first + second.total * shrink_second,
        first.weighted * shrink_first + second.weighted * shrink_second,
    )


def quotient(weighted: Array, total: Array) -> Array:
    """Return ``weighted / total``, and NaN where the total is zero.

    0/0 is NaN already, but its gradient would be NaN for every value, even if the row
    is discarded; here it is zero.
    """
    xp = namespace(weighted, total)
    empty = total == 0.0  # type: ignore[comparison-overlap]
    result = weighted / xp.where(empty, xp.ones_like(total), total)
    undefined = xp.asarray(math.nan, dtype=result.dtype, device=device_of(result))
    return cast(Array, xp.where(empty, undefined, result))


def hidden(scores: Array, visible: Array | None) -> Array:
    """Return the scores with ``-inf`` where the key is masked."""
    if visible is None:
        return scores
    xp = namespace(scores)
    # Masked before the exponential, which could overflow and give a gradient of 0 times
    # infinity.
    lowest = xp.asarray(-math.inf, dtype=scores.dtype, device=device_of(scores))
    return cast(Array, xp.where(visible, scores, lowest))


def _finite(peak: Array) -> Array:
    """Return the peak, or 0 if it is -inf: -inf - (-inf) would be NaN."""
    xp = namespace(peak)
    return cast(Array, xp.where(peak <= -math.inf, xp.zeros_like(peak), peak))
