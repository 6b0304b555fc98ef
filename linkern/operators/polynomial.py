r"""Operators whose weights are polynomials of the score, as feature maps."""

from dataclasses import replace
from math import comb
from typing import Unpack

from linkern import validate
from linkern.feature_maps import polynomial, symmetric_power, taylor
from linkern.operators.definition import (
    QKV,
    Definition,
    Inputs,
    Prepared,
    prepare_terms,
)
from linkern.operators.forms import Form
from linkern.operators.linear import weighted_sums
from linkern.operators.register import Options, operator
from linkern.state import AttentionResult, State
from linkern.typing import Array, ArrayT

__all__ = ["based", "power_retention", "rebased"]


_squares = polynomial(degree=2)


def _based(
    form: Form, state: State, *, query: Array, key: Array, value: Array
) -> tuple[Array, State]:
    return weighted_sums(form, state, taylor(query), taylor(key), value)


def _rebased(
    form: Form, state: State, *, query: Array, key: Array, value: Array
) -> tuple[Array, State]:
    return weighted_sums(form, state, _squares(query), _squares(key), value)


def _power_retention(
    form: Form,
    state: State,
    *,
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None,
    degree: int,
) -> tuple[Array, State]:
    features = symmetric_power(degree)
    query, key = features(query), features(key)
    return weighted_sums(form, state, query, key, value, log_decay=log_decay)


def _prepare_power(
    definition: Definition,
    inputs: Inputs,
    settings: Inputs,
    form: Form,
    scale: float | None,
) -> Prepared:
    """Add the features of the degree to the sizes: a state has as many rows."""
    degree = validate.positive_integer("degree", settings["degree"])
    if degree % 2:
        msg = f"`degree` must be even, or weights can be negative, got {degree}."
        raise ValueError(msg)
    ready = prepare_terms(definition, inputs, {}, form, scale)
    rows = comb(ready.sizes["k"] + degree - 1, degree)
    sizes = {**ready.sizes, "f": rows}
    return replace(ready, sizes=sizes, options={"degree": degree})


BASED = Definition(
    "based",
    QKV,
    _based,
    memory=lambda n: (1 + n["k"] + n["k"] ** 2, n["v"]),
    normalizer=lambda n: (1 + n["k"] + n["k"] ** 2,),
)
REBASED = Definition(
    "rebased",
    QKV,
    _rebased,
    memory=lambda n: (n["k"] ** 2, n["v"]),
    normalizer=lambda n: (n["k"] ** 2,),
)
POWER_RETENTION = Definition(
    "power_retention",
    {**QKV, "log_decay": "t"},
    _power_retention,
    memory=lambda n: (n["f"], n["v"]),
    normalizer=lambda n: (n["f"],),
    prepare=_prepare_power,
)


@operator(BASED)
def based(
    query: ArrayT, key: ArrayT, value: ArrayT, **options: Unpack[Options[ArrayT]]
) -> AttentionResult[ArrayT]:
    r"""Linear attention with the second-order Taylor polynomial of the exponential.

    Parameters
    ----------
    **options
        `scale` (default ``K^-0.5``, inside the polynomial), `initial_state`,
        `cu_seqlens`, `form` and `chunk_size`, as in `simple_gla`.

    Returns
    -------
    AttentionResult
        ``output (..., T, V)``; ``state`` over the ``F = 1 + K + K^2`` features of the
        keys: memory ``(..., F, V)``, normalizer ``(..., F)``.

    Notes
    -----
    .. math::

        o_t = \frac{\sum_{j \le t} p(x_{tj}) v_j}{\sum_{j \le t} p(x_{tj})}, \qquad
        p(x) = 1 + x + x^2 / 2, \qquad x_{tj} = scale \; q_t . k_j

    ``p`` is never below 1/2, so the quotient exists. Kernels of this operator add 1e-6
    to the denominator; nothing is added here.

    Source: Arora et al. 2024, "Simple Linear Attention Language Models Balance the
    Recall-Throughput Tradeoff".

    Examples
    --------
    >>> import numpy as np, linkern
    >>> zeros = np.zeros((2, 2))
    >>> linkern.based(zeros, zeros, np.asarray([[3.0], [6.0]])).output[:, 0]
    array([3. , 4.5])
    """


@operator(REBASED)
def rebased(
    query: ArrayT, key: ArrayT, value: ArrayT, **options: Unpack[Options[ArrayT]]
) -> AttentionResult[ArrayT]:
    r"""Linear attention with the square of the score.

    Parameters
    ----------
    query, key, value : array (..., T, K), (..., T, K), (..., T, V)
        As in `simple_gla`; the model's learned affine maps are outside.
    **options
        `scale` (default ``K^-0.5``; it cancels), `initial_state`, `cu_seqlens`, `form`
        and `chunk_size`, as in `simple_gla`.

    Returns
    -------
    AttentionResult
        ``output (..., T, V)``; ``state`` over the ``F = K^2`` features of the keys:
        memory ``(..., F, V)``, normalizer ``(..., F)``.

    Notes
    -----
    .. math::

        o_t = \frac{\sum_{j \le t} (q_t . k_j)^2 v_j}{\sum_{j \le t} (q_t . k_j)^2}

    The quotient is exact: a query that is orthogonal to every key gives NaN, where
    kernels of this operator, which add 1e-5 or 1e-6, give 0.

    Source: Aksenov et al. 2024, "Linear Transformers with Learnable Kernel Functions
    Are Better In-Context Models".

    Examples
    --------
    >>> import numpy as np, linkern
    >>> ones = np.ones((2, 2))
    >>> linkern.rebased(ones, ones, np.asarray([[3.0], [6.0]])).output[:, 0]
    array([3. , 4.5])
    """


@operator(POWER_RETENTION)
def power_retention(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    log_decay: ArrayT | None = None,
    *,
    degree: int = 2,
    **options: Unpack[Options[ArrayT]],
) -> AttentionResult[ArrayT]:
    r"""Power retention: an even power of the score as the weight, under a gate.

    Parameters
    ----------
    log_decay : array (..., T), optional
        Natural logarithms of the gates, in ``[-inf, 0]`` (``log_G``). Default: nothing
        is forgotten.
    degree : int
        The power, even: 2 and 4 are in use.
    **options
        `scale` (default ``K^-0.5``; it cancels), `initial_state`, `cu_seqlens`, `form`
        and `chunk_size`, as in `simple_gla`.

    Returns
    -------
    AttentionResult
        ``output (..., T, V)``; ``state`` over the ``F = binom(K + degree - 1, degree)``
        features of the keys (`linkern.feature_maps.symmetric_power`): memory
        ``(..., F, V)``, normalizer ``(..., F)``.

    Raises
    ------
    TypeError, ValueError
        As `simple_gla`; also if `degree` is not even.

    Notes
    -----
    .. math::

        o_t = \frac{\sum_{j \le t} w_{tj} v_j}{\sum_{j \le t} w_{tj}}, \qquad
        w_{tj} = e^{g_{j+1} + \dots + g_t} (q_t . k_j)^{degree}

    Without gates, degree 2 is `rebased`, whose state has each product of two channels
    twice. The quotient is exact: a query that is orthogonal to every key gives NaN.
    Published kernels keep products in tiles, so that their states have more rows.

    Source: Buckman et al. 2025, "Scaling Context Requires Rethinking Attention",
    arXiv 2507.04239.

    Examples
    --------
    >>> import numpy as np, linkern
    >>> ones, value = np.ones((2, 2)), np.asarray([[3.0], [6.0]])
    >>> linkern.power_retention(ones, ones, value, np.log([1.0, 0.5])).output[:, 0]
    array([3., 5.])
    """
