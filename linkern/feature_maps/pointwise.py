"""Feature maps that act on each entry, so that ``F = K``."""

from linkern import validate
from linkern.array import namespace, zeros
from linkern.typing import Array

__all__ = ["elu_plus_one", "exp", "identity", "relu", "squared_relu"]


def elu_plus_one(x: Array, /) -> Array:
    """Positive features ``elu(x) + 1``.

    Parameters
    ----------
    x : array (..., K)
        Queries or keys, of any real floating dtype.

    Returns
    -------
    array (..., K)
        ``x + 1`` where ``x > 0``, otherwise ``exp(x)``: positive wherever ``exp(x)``
        does not underflow.

    Raises
    ------
    TypeError
        If `x` is no array.

    Notes
    -----
    The textbook sum ``elu(x) + 1`` cancels: in float32 it has lost every digit at
    ``x = -17`` and is exactly zero below. Here both branches keep full relative
    accuracy. Source: Katharopoulos et al. 2020, "Transformers are RNNs", equation 7.

    Examples
    --------
    >>> import numpy as np
    >>> elu_plus_one(np.asarray([-1000.0, 0.0, 2.0]))
    array([0., 1., 3.])
    """
    validate.an_array("x", x)
    xp = namespace(x)
    positive = x > 0
    # `where` and not `maximum(x + 1, exp(minimum(x, 0)))`: the two agree in value, but
    # near zero both arguments of that maximum round to 1, and automatic
    # differentiation splits the gradient of a tie between them. The inner `where`
    # keeps exp from overflowing on the branch that is thrown away.
    below = xp.exp(xp.where(positive, zeros((), like=x), x))
    return xp.where(positive, x + 1, below)  # type: ignore[no-any-return]


def relu(x: Array, /) -> Array:
    """Non-negative features ``max(x, 0)``; the denominator can be zero.

    Parameters
    ----------
    x : array (..., K)
        Queries or keys, of any real floating dtype.

    Returns
    -------
    array (..., K)
        ``x`` where it is positive, zero elsewhere; NaN stays NaN.

    Raises
    ------
    TypeError
        If `x` is no array.

    Notes
    -----
    A query whose features vanish on every key it sees has weight zero on all of them,
    and its normalised output is the exact quotient 0/0: NaN.

    Examples
    --------
    >>> import numpy as np
    >>> relu(np.asarray([-1.0, 0.0, 2.0]))
    array([0., 0., 2.])
    """
    validate.an_array("x", x)
    xp = namespace(x)
    # `x <= 0` rather than `maximum`: NaN propagates and the gradient at 0 is 0.
    return xp.where(x <= 0, xp.zeros_like(x), x)  # type: ignore[no-any-return]


def squared_relu(x: Array, /) -> Array:
    """Non-negative features ``max(x, 0)^2``; the denominator can be zero.

    Parameters
    ----------
    x : array (..., K)
        Queries or keys, of any real floating dtype.

    Returns
    -------
    array (..., K)
        ``x^2`` where ``x`` is positive, zero elsewhere; NaN stays NaN.

    Raises
    ------
    TypeError
        If `x` is no array.

    Notes
    -----
    Smooth at zero, where `relu` is not. Source: So et al. 2021, "Primer: Searching for
    Efficient Transformers for Language Modeling".

    Examples
    --------
    >>> import numpy as np
    >>> squared_relu(np.asarray([-1.0, 0.0, 3.0]))
    array([0., 0., 9.])
    """
    positive = relu(x)
    return positive * positive


def exp(x: Array, /) -> Array:
    """Positive features ``exp(x)``, entry by entry.

    Parameters
    ----------
    x : array (..., K)
        Queries or keys, of any real floating dtype.

    Returns
    -------
    array (..., K)
        ``exp(x)``.

    Raises
    ------
    TypeError
        If `x` is no array.

    Examples
    --------
    >>> import numpy as np
    >>> exp(np.asarray([0.0]))
    array([1.])
    """
    validate.an_array("x", x)
    return namespace(x).exp(x)  # type: ignore[no-any-return]


def identity(x: Array, /) -> Array:
    """Features already computed: ``x`` itself.

    Parameters
    ----------
    x : array (..., K)
        Queries or keys, of any real floating dtype.

    Returns
    -------
    array (..., K)
        ``x``, the same object.

    Raises
    ------
    TypeError
        If `x` is no array.

    Notes
    -----
    With negative features the denominator can vanish or change sign: normalise only
    when the features are non-negative.

    Examples
    --------
    >>> import numpy as np
    >>> identity(np.asarray([-1.0, 2.0]))
    array([-1.,  2.])
    """
    validate.an_array("x", x)
    return x
