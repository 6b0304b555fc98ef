"""A softmax over some of the keys, kept so that two of them combine into one.

A `Partial` is the largest score of each query, the sum of the exponentials relative to
it, and the same sum of values. Partials of disjoint sets of keys form a commutative
monoid: blocks of keys, the parts of a sparse pattern and the rounds of hashing are all
folds of it.
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
        Largest score that each query has seen; ``-inf`` if it has seen none.
    total : array (..., T, 1)
        Sum of ``exp(score - peak)``.
    weighted : array (..., T, V)
        Sum of ``exp(score - peak) value``.
    """

    peak: Array
    total: Array
    weighted: Array

    def output(self) -> Array:
        """Return the quotient: NaN, which is 0/0, for a query that has seen nothing."""
        return quotient(self.weighted, self.total)

    def mapped(self, change: Callable[[Array], Array]) -> "Partial":
        """Return the same with all three parts rearranged."""
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

    0/0 is NaN already. But its gradient would be NaN for every value, even for those
    who throw that row away; here it is zero.
    """
    xp = namespace(weighted, total)
    empty = total == 0.0  # type: ignore[comparison-overlap]
    found = weighted / xp.where(empty, xp.ones_like(total), total)
    undefined = xp.asarray(math.nan, dtype=found.dtype, device=device_of(found))
    return cast(Array, xp.where(empty, undefined, found))


def hidden(scores: Array, visible: Array | None) -> Array:
    """Return the scores with ``-inf`` where the key must not be seen."""
    if visible is None:
        return scores
    xp = namespace(scores)
    # Before the exponential: a mask after it would have overflowed already, and its
    # gradient would be 0 times infinity.
    nothing = xp.asarray(-math.inf, dtype=scores.dtype, device=device_of(scores))
    return cast(Array, xp.where(visible, scores, nothing))


def _finite(peak: Array) -> Array:
    """Return a number to subtract: -inf - (-inf) is NaN, and -inf - 0 is -inf."""
    xp = namespace(peak)
    return cast(Array, xp.where(peak <= -math.inf, xp.zeros_like(peak), peak))
