r"""Delta rules that write along a preconditioned key and erase along the key itself.

A_t = e^{a_t} A_{t-1} + b_t k_t^2,   w_t = k_t x^{-s_t},   s_t = r_t / (1 + |r_t|),
r_t = log(A_t + 1e-6) - c,           then the gated delta rule with writes along w_t

Channels that many keys have used are written less, others more, by a factor between
``1 / x`` and ``x``. The sums A are state, beside the memory.
"""

from math import log
from typing import Unpack

from linkern.array import namespace, ones
from linkern.core.recurrence import Terms
from linkern.operators.definition import QKV, Definition, scaled
from linkern.operators.forms import Form
from linkern.operators.register import Options, operator
from linkern.state import AttentionResult, State
from linkern.typing import Array, ArrayT

__all__ = ["preconditioned_gated_delta_rule", "preconditioned_kda"]

# Numbers of the published kernels: the first is part of the equation.
_EPS = 1e-6
_CENTER, _LOG_RANGE = -0.2, log(1.5)


def _attend(
    form: Form,
    state: State,
    *,
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None,
    beta: Array | None,
    preconditioner_log_decay: Array | None,
    preconditioner_beta: Array | None,
    center: Array | None,
    log_range: Array | None,
) -> tuple[Array, State]:
    """Write ``beta (v - S~^T k)`` at the preconditioned key."""
    assert state.normalizer is not None
    one = ones((*key.shape[:-1], 1), like=key)
    squares = scaled(preconditioner_beta, key * key)
    sums, last = form(
        state.normalizer[..., None, :],
        Terms(one, one, squares, preconditioner_log_decay),
    )
    written = key * _factor(sums, center, log_range)
    terms = Terms(query, written, scaled(beta, value), log_decay, scaled(beta, key))
    output, memory = form(state.memory, terms)
    return output, State(memory, last[..., 0, :])


def _factor(sums: Array, center: Array | None, log_range: Array | None) -> Array:
    """Return ``exp(-log_range s)``: the larger the sum of a channel, the smaller."""
    xp = namespace(sums)
    below = (_CENTER if center is None else center) - xp.log(sums + _EPS)
    squashed = below / (1 + xp.abs(below))
    factor: Array = xp.exp((_LOG_RANGE if log_range is None else log_range) * squashed)
    return factor


def _definition(name: str, log_decay: str) -> Definition:
    return Definition(
        name,
        {
            **QKV,
            "log_decay": log_decay,
            "beta": "t",
            "preconditioner_log_decay": "t",
            "preconditioner_beta": "t",
            "center": "",
            "log_range": "",
        },
        _attend,
        normalizer=lambda n: (n["k"],),
        affine=False,
        several_passes=True,
    )


@operator(_definition("preconditioned_gated_delta_rule", "t"))
def preconditioned_gated_delta_rule(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    log_decay: ArrayT | None = None,
    beta: ArrayT | None = None,
    preconditioner_log_decay: ArrayT | None = None,
    preconditioner_beta: ArrayT | None = None,
    center: ArrayT | None = None,
    log_range: ArrayT | None = None,
    **options: Unpack[Options[ArrayT]],
) -> AttentionResult[ArrayT]:
    r"""Gated delta rule that writes along keys scaled by how much a channel was used.

    Parameters
    ----------
    query, key, value : array (..., T, K), (..., T, K), (..., T, V)
        As in `simple_gla`; keys as in `delta_rule`.
    log_decay, beta : array (..., T), optional
        As in `gated_delta_rule`.
    preconditioner_log_decay : array (..., T), optional
        ``a``: natural logarithms of the decays of the sums of squares, in ``[-inf,
        0]``. Default: none.
    preconditioner_beta : array (..., T), optional
        ``b``: weight of each square, zero or positive. Default: 1.
    center : array (H,), optional
        ``c``: logarithm of the sum whose channel is written as it is. Default: -0.2.
    log_range : array (H,), optional
        ``log x``: channels are written with a factor between ``1 / x`` and ``x``.
        Default: ``log 1.5``; with 0 this is `gated_delta_rule`.

    Returns
    -------
    AttentionResult
        ``output (..., T, V)``; ``state`` with the memory ``(..., K, V)`` and, as
        normalizer, the sums of squares ``(..., K)``.

    Raises
    ------
    TypeError, ValueError
        As `gated_delta_rule`; also if a weight of a square is negative.

    Notes
    -----
    .. math::

        A_t = e^{a_t} A_{t-1} + b_t k_t^2, \qquad
        r_t = \log(A_t + 10^{-6}) - c, \qquad
        w_t = k_t \odot x^{-r_t / (1 + |r_t|)}

    channel by channel, and with it

    .. math::

        \tilde S = e^{g_t} S_{t-1}, \qquad
        S_t = \tilde S + \beta_t w_t (v_t - \tilde S^T k_t)^T, \qquad
        o_t = scale \; q_t^T S_t

    ``A`` is the diagonal of the sum of ``k k^T``, the matrix of the regression that the
    delta rule takes one step of. Value heads that share a key have sums of their own.
    Published kernels take ``log x`` as a number ``x`` for all heads, and call ``c``
    ``log_atk_scale``, the gates ``g_atk`` and ``beta_atk``.

    Source: "Preconditioned DeltaNet", arXiv 2604.21100, 2026; the operator
    ``precond_gated_delta_rule`` of flash-linear-attention.

    Examples
    --------
    >>> import numpy as np, linkern
    >>> ones = np.ones((2, 1))
    >>> plain = linkern.preconditioned_gated_delta_rule(
    ...     ones, ones, 4 * ones, beta=np.full(2, 0.5), log_range=np.zeros(())
    ... )
    >>> plain.output[:, 0], plain.state.normalizer
    (array([2., 3.]), array([2.]))
    """


@operator(_definition("preconditioned_kda", "tk"))
def preconditioned_kda(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    log_decay: ArrayT | None = None,
    beta: ArrayT | None = None,
    preconditioner_log_decay: ArrayT | None = None,
    preconditioner_beta: ArrayT | None = None,
    center: ArrayT | None = None,
    log_range: ArrayT | None = None,
    **options: Unpack[Options[ArrayT]],
) -> AttentionResult[ArrayT]:
    r"""Kimi delta attention that writes along keys scaled by use of their channels.

    Parameters
    ----------
    query, key, value : array (..., T, K), (..., T, K), (..., T, V)
        As in `simple_gla`; keys as in `delta_rule`.
    log_decay : array (..., T, K), optional
        Natural logarithms of the decays, in ``[-inf, 0]``, as in `kda`.
    beta : array (..., T), optional
        How much of the old value is replaced, in ``[0, 2]``. Default: 1.
    preconditioner_log_decay, preconditioner_beta : array (..., T), optional
        As in `preconditioned_gated_delta_rule`.
    center, log_range : array (H,), optional
        Likewise; with a range of 0 this is `kda`.

    Returns
    -------
    AttentionResult
        ``output (..., T, V)``; ``state`` with the memory ``(..., K, V)`` and, as
        normalizer, the sums of squares ``(..., K)``.

    Raises
    ------
    TypeError, ValueError
        As `preconditioned_gated_delta_rule`.

    Notes
    -----
    With the preconditioned key ``w_t`` of `preconditioned_gated_delta_rule`,

    .. math::

        \tilde S = \mathrm{Diag}(e^{g_t}) S_{t-1}, \qquad
        S_t = \tilde S + \beta_t w_t (v_t - \tilde S^T k_t)^T, \qquad
        o_t = scale \; q_t^T S_t

    Source: "Preconditioned DeltaNet", arXiv 2604.21100, 2026; the operator
    ``precond_kda`` of flash-linear-attention.

    Examples
    --------
    >>> import numpy as np, linkern
    >>> ones = np.ones((2, 1))
    >>> linkern.preconditioned_kda(
    ...     ones, ones, 4 * ones, np.log([[1.0], [0.5]]), log_range=np.zeros(())
    ... ).output[:, 0]
    array([4., 4.])
    """
