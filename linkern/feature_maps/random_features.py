r"""Feature maps of random projections: kernels, in expectation."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern import validate
from linkern.array import astype, concat, device_of, mT, namespace
from linkern.feature_maps._checks import number, rows
from linkern.typing import Array

__all__ = [
    "PositiveRandomFeatures",
    "RandomFourierFeatures",
    "positive_random",
    "random_fourier",
]


@dataclass(frozen=True, eq=False)
class RandomFourierFeatures:
    """Cosines and sines of random projections; made by `random_fourier`.

    Parameters
    ----------
    projection : numpy array (F / 2, K)
        Frequencies, in radians for each unit of the inputs.
    """

    projection: NDArray[np.float64]

    def __call__(self, x: Array, /) -> Array:
        """Return the features ``(..., F)`` of ``x (..., K)``."""
        wide = rows(x, size=self.projection.shape[1])
        xp, angles = namespace(wide), _projected(wide, self.projection)
        waves = concat([xp.cos(angles), xp.sin(angles)], axis=-1)
        return astype(waves * self.projection.shape[0] ** -0.5, x.dtype)


@dataclass(frozen=True, eq=False)
class PositiveRandomFeatures:
    """Exponentials of random projections; made by `positive_random`.

    Parameters
    ----------
    projection : numpy array (M, K)
        Directions, dimensionless: ``M = F``, or ``F / 2`` if `hyperbolic`.
    scale : float
        Factor on the scores.
    hyperbolic : bool
        True if each direction comes with its negative.
    """

    projection: NDArray[np.float64]
    scale: float = 1.0
    hyperbolic: bool = False

    def __call__(self, x: Array, /) -> Array:
        """Return the features ``(..., F)`` of ``x (..., K)``."""
        wide = rows(x, size=self.projection.shape[1]) * self.scale**0.5
        xp, projected = namespace(wide), _projected(wide, self.projection)
        if self.hyperbolic:
            projected = concat([projected, -projected], axis=-1)
        half_square = xp.sum(wide * wide, axis=-1, keepdims=True) * 0.5
        # One exponential of a difference, which is at most half the squared norm of a
        # direction; the product of two would overflow, or give 0 times infinity.
        features = xp.exp(projected - half_square) * projected.shape[-1] ** -0.5
        return astype(features, x.dtype)


def random_fourier(
    key_dim: int,
    feature_count: int,
    *,
    bandwidth: float = 1.0,
    orthogonal: bool = False,
    rng: Any = None,
) -> RandomFourierFeatures:
    r"""Draw features whose similarity is the Gaussian kernel in expectation.

    Parameters
    ----------
    key_dim : int
        ``K``, the last axis of queries and keys.
    feature_count : int
        ``F``, an even number: a cosine and a sine of each frequency.
    bandwidth : float
        Of the kernel, in the units of the queries.
    orthogonal : bool
        Draw frequencies that are orthogonal in blocks of ``K``, with the lengths of
        Gaussian vectors: still unbiased, and with less variance.
    rng : int, numpy.random.Generator, ...
        Anything that `numpy.random.default_rng` takes; the same number draws the same
        map.

    Returns
    -------
    RandomFourierFeatures
        A feature map, ``(..., K)`` to ``(..., F)``.

    Raises
    ------
    TypeError, ValueError
        If an option has the wrong type or is out of range.

    Notes
    -----
    .. math::

        \phi(x) = \sqrt{2 / F} \; [\cos(x W^T), \; \sin(x W^T)], \qquad
        E \; \phi(x) . \phi(y) = \exp\left(-|x - y|^2 / (2 \; bandwidth^2)\right)

    with rows of ``W`` from a normal distribution of standard deviation
    ``1 / bandwidth``. Similarities can be negative: use ``normalize=False``. Source:
    Rahimi and Recht 2007, "Random Features for Large-Scale Kernel Machines"; Yu et al.
    2016, "Orthogonal Random Features".

    Examples
    --------
    >>> import numpy as np
    >>> phi, x = random_fourier(2, 64, rng=0), np.asarray([1.0, -2.0])
    >>> round(float(phi(x) @ phi(x)), 12)  # the squares of a cosine and a sine
    1.0
    """
    bandwidth = number("bandwidth", bandwidth)
    frequencies = _halved(feature_count)
    directions = _directions(key_dim, frequencies, rng, orthogonal=orthogonal)
    return RandomFourierFeatures(directions / bandwidth)


def positive_random(
    key_dim: int,
    feature_count: int,
    *,
    scale: float = 1.0,
    orthogonal: bool = False,
    hyperbolic: bool = False,
    rng: Any = None,
) -> PositiveRandomFeatures:
    r"""Draw positive features whose similarity is the exponential in expectation.

    Parameters
    ----------
    key_dim : int
        ``K``, the last axis of queries and keys.
    feature_count : int
        ``F``; an even number if `hyperbolic`.
    scale : float
        Positive factor on the scores. Pass ``K ** -0.5`` for those of softmax
        attention.
    orthogonal : bool
        As in `random_fourier`.
    hyperbolic : bool
        Use each direction and its negative: the variance of a similarity is that of as
        many features without, times ``1 - exp(-|x + y|^2)``.
    rng : int, numpy.random.Generator, ...
        As in `random_fourier`.

    Returns
    -------
    PositiveRandomFeatures
        A feature map, ``(..., K)`` to ``(..., F)``.

    Raises
    ------
    TypeError, ValueError
        If an option has the wrong type or is out of range.

    Notes
    -----
    For ``scale = 1`` (otherwise of inputs times its square root),

    .. math::

        \phi(x) = F^{-1/2} \exp\left(x W^T - |x|^2 / 2\right), \qquad
        E \; \phi(x) . \phi(y) = \exp(x . y)

    with standard normal rows of ``W``. The variance of a similarity grows with
    ``exp(|x + y|^2)``: long vectors need many features.

    Performers subtract the largest projection from each exponent, over the entries of a
    query and over all keys. The first cancels in a quotient only, and the second makes
    each key depend on all others, later ones too: neither is done here. An exponent is
    at most half the squared norm of a row of ``W``, about ``K / 2``, so it takes ``K``
    above 100 to overflow in float32.

    Source: Choromanski et al. 2021, "Rethinking Attention with Performers", lemmas 1
    and 2.

    Examples
    --------
    >>> import numpy as np
    >>> phi = positive_random(2, 4096, orthogonal=True, rng=0)
    >>> x, y = np.asarray([0.5, 0.0]), np.asarray([0.5, 0.5])
    >>> bool(abs(phi(x) @ phi(y) / np.exp(x @ y) - 1) < 0.05)
    True
    """
    scale = number("scale", scale)
    if validate.flag("hyperbolic", hyperbolic):
        count = _halved(feature_count)
    else:
        count = validate.positive_integer("feature_count", feature_count)
    directions = _directions(key_dim, count, rng, orthogonal=orthogonal)
    return PositiveRandomFeatures(directions, scale, hyperbolic)


def _halved(feature_count: int) -> int:
    if validate.positive_integer("feature_count", feature_count) % 2:
        msg = f"`feature_count` must be even, got {feature_count}; features are pairs."
        raise ValueError(msg)
    return int(feature_count) // 2


def _directions(
    key_dim: int, count: int, rng: Any, *, orthogonal: bool
) -> NDArray[np.float64]:
    """Draw standard normal rows, orthogonal in blocks of ``K`` if `orthogonal`."""
    size, draw = (
        validate.positive_integer("key_dim", key_dim),
        validate.generator(rng),
    )
    gaussian = draw.standard_normal((count, size))
    if not validate.flag("orthogonal", orthogonal):
        return gaussian
    blocks = -(-count // size)
    rotations, triangle = np.linalg.qr(draw.standard_normal((blocks, size, size)))
    # Without these signs a factorisation prefers some rotations to others, and rows
    # would not have the distribution that makes features unbiased.
    rotations = (
        rotations * np.sign(np.diagonal(triangle, axis1=-2, axis2=-1))[:, None, :]
    )
    rows_of_blocks = np.swapaxes(rotations, -1, -2).reshape(-1, size)[:count]
    norms = np.linalg.norm(gaussian, axis=-1, keepdims=True)
    return np.asarray(rows_of_blocks * norms)


def _projected(x: Array, directions: NDArray[np.float64]) -> Array:
    matrix = namespace(x).asarray(directions.copy(), dtype=x.dtype, device=device_of(x))
    return x @ mT(matrix)
