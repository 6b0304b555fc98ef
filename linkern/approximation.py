r"""Error of the similarity of a feature map, and its decrease with more features."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from linkern import validate
from linkern.array import namespace
from linkern.similarity import Similarity, of_features
from linkern.typing import Array, FeatureMapFunction

__all__ = [
    "ApproximationCurve",
    "ApproximationError",
    "approximation_curve",
    "approximation_error",
]


class ApproximationError(NamedTuple):
    """Errors of similarities, relative to the root mean square of the exact ones.

    Parameters
    ----------
    root_mean_square : array ()
        Root mean square of the errors of all pairs.
    largest : array ()
        Absolute value of the largest error of a pair.
    """

    root_mean_square: Array
    largest: Array


@dataclass(frozen=True)
class ApproximationCurve:
    """Errors of random feature maps, one entry for each number of features.

    Parameters
    ----------
    feature_counts : tuple of int
        Numbers of features.
    root_mean_square : tuple of float
        That of the errors of all pairs and draws, as in `ApproximationError`.
    largest : tuple of float
        The largest error of a pair in any draw.
    bias : tuple of float
        Root mean square of the errors of similarities averaged over the draws. If a map
        is unbiased, about ``root_mean_square / repeats^0.5``.
    """

    feature_counts: tuple[int, ...]
    root_mean_square: tuple[float, ...]
    largest: tuple[float, ...]
    bias: tuple[float, ...]


def approximation_error(
    feature_map: FeatureMapFunction, similarity: Similarity, query: Array, key: Array
) -> ApproximationError:
    r"""Compare the similarity of a feature map with the one that it approximates.

    Parameters
    ----------
    feature_map : callable
        ``(..., K)`` to ``(..., F)``. See `linkern.feature_maps`.
    similarity : callable
        ``(..., T, K)`` and ``(..., S, K)`` to ``(..., T, S)``. See
        `linkern.similarity`.
    query, key : array (..., T, K), (..., S, K)
        Vectors to compare at. Errors grow with their magnitude: all are small near 0.

    Returns
    -------
    ApproximationError
        Two arrays without axes, in the accumulation dtype; differentiable.

    Raises
    ------
    TypeError, ValueError
        As `linkern.similarity.of_features`; if the similarities differ in shape.

    Notes
    -----
    .. math::

        \left(\frac{\mathrm{mean} \; (\phi(q_i) . \phi(k_j) - s_{ij})^2}
        {\mathrm{mean} \; s_{ij}^2}\right)^{1/2}, \qquad
        \frac{\max \; |\phi(q_i) . \phi(k_j) - s_{ij}|}
        {(\mathrm{mean} \; s_{ij}^2)^{1/2}}

    No factor is fitted, although one would cancel in a normalised output.

    Source: Choromanski et al. 2021, "Rethinking Attention with Performers", section
    4.2.

    Examples
    --------
    >>> import numpy as np, linkern
    >>> from linkern.similarity import exponential
    >>> x = np.zeros((2, 4))
    >>> float(approximation_error(linkern.exp, exponential(), x, x).largest)
    3.0
    """
    error, size = _difference(feature_map, similarity, query, key)
    xp = namespace(error)
    return ApproximationError(
        _root_mean_square(error) / size, xp.max(xp.abs(error)) / size
    )


def approximation_curve(
    make_feature_map: Callable[[int, "np.random.Generator"], FeatureMapFunction],
    similarity: Similarity,
    query: Array,
    key: Array,
    feature_counts: Sequence[int],
    *,
    repeats: int = 10,
    rng: Any = None,
) -> ApproximationCurve:
    r"""Measure the errors of random feature maps for several numbers of features.

    Parameters
    ----------
    make_feature_map : callable
        ``make_feature_map(feature_count, rng)`` draws a feature map with a
        `numpy.random.Generator`.
    similarity : callable
        As in `approximation_error`.
    query, key : array (..., T, K), (..., S, K)
        As in `approximation_error`.
    feature_counts : sequence of int
        Numbers of features, positive.
    repeats : int
        Feature maps to draw for each number.
    rng : int, numpy.random.Generator, ...
        Anything that `numpy.random.default_rng` takes.

    Returns
    -------
    ApproximationCurve
        Errors by number of features.

    Raises
    ------
    TypeError, ValueError
        As `approximation_error`; if a number is not a positive integer.

    Notes
    -----
    The mean of ``m`` independent unbiased terms has an error of the order of
    ``m^-0.5``: a straight line of that slope on logarithmic axes. An error that does
    not fall is a bias: the features are those of another kernel.

    Source: Rahimi and Recht 2007, "Random Features for Large-Scale Kernel Machines".

    Examples
    --------
    >>> import numpy as np
    >>> from linkern.feature_maps import random_fourier
    >>> from linkern.similarity import rbf
    >>> x = np.random.default_rng(0).normal(size=(8, 4))
    >>> curve = approximation_curve(
    ...     lambda count, rng: random_fourier(4, count, rng=rng),
    ...     rbf(), x, x, [16, 64, 256], repeats=50, rng=0,
    ... )
    >>> [round(error, 2) for error in curve.root_mean_square]
    [0.53, 0.29, 0.14]
    """
    draw = validate.generator(rng)
    counts = tuple(
        validate.positive_integer("feature_counts", count) for count in feature_counts
    )
    repeats = validate.positive_integer("repeats", repeats)

    def errors_of(count: int) -> tuple[float, float, float]:
        errors, squares, largest = [], 0.0, 0.0
        for _ in range(repeats):
            feature_map = make_feature_map(count, draw)
            error, size = _difference(feature_map, similarity, query, key)
            errors.append(error / size)
            squares += float(_root_mean_square(errors[-1])) ** 2
            xp = namespace(error)
            largest = max(largest, float(xp.max(xp.abs(errors[-1]))))
        bias = _root_mean_square(sum(errors[1:], errors[0]) * (1 / repeats))
        return (squares / repeats) ** 0.5, largest, float(bias)

    columns = [errors_of(count) for count in counts]
    return ApproximationCurve(
        counts,
        tuple(column[0] for column in columns),
        tuple(column[1] for column in columns),
        tuple(column[2] for column in columns),
    )


def _difference(
    feature_map: FeatureMapFunction, similarity: Similarity, query: Array, key: Array
) -> tuple[Array, Array]:
    """Return the error of each pair, and the root mean square of the exact values."""
    q, k = validate.widened("query", query), validate.widened("key", key)
    approximate = of_features(feature_map)(q, k)
    exact = validate.similarities(similarity, q, k)
    return approximate - exact, _root_mean_square(exact)


def _root_mean_square(x: Array) -> Any:
    xp = namespace(x)
    return xp.sqrt(xp.mean(x * x))
