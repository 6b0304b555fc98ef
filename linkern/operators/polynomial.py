r"""Operators whose weights are polynomials of the score, as feature maps."""

from typing import Unpack

from linkern.feature_maps import polynomial, taylor
from linkern.operators.definition import QKV, Definition
from linkern.operators.forms import Form
from linkern.operators.linear import weighted_sums
from linkern.operators.register import Options, operator
from linkern.state import AttentionResult, State
from linkern.typing import Array, ArrayT

__all__ = ["based", "rebased"]


_squares = polynomial(degree=2)


def _based(
    form: Form, state: State, *, query: Array, key: Array, value: Array
) -> tuple[Array, State]:
    return weighted_sums(form, state, taylor(query), taylor(key), value)


def _rebased(
    form: Form, state: State, *, query: Array, key: Array, value: Array
) -> tuple[Array, State]:
    return weighted_sums(form, state, _squares(query), _squares(key), value)


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
