r"""The delta rule with momentum: the memory follows a sum of its own corrections.

S~ = e^{g_t} S_{t-1},   M_t = e^{h_t} M_{t-1} + r_t k_t (v_t - S~^T k_t)^T,
S_t = S~ + b_t M_t,     o_t = scale q_t^T S_t

Both memories are state, ``S`` above ``M``. What a token keeps of the pair is a matrix
``((e^g, b e^h), (0, e^h))``.
"""

from typing import Any, Unpack

from linkern.array import concat, namespace, ones, zeros
from linkern.core.recurrence import Terms
from linkern.operators.definition import QKV, Definition, scaled
from linkern.operators.forms import Form
from linkern.operators.register import Options, operator
from linkern.state import AttentionResult, State
from linkern.typing import Array, ArrayT

__all__ = ["momentum_delta_rule"]


def _attend(
    form: Form,
    state: State,
    *,
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None,
    momentum_log_decay: Array | None,
    beta: Array | None,
    momentum_beta: Array | None,
) -> tuple[Array, State]:
    """Write ``r (v - S~^T k)`` at ``k`` into the second memory of a pair."""
    decayed = key
    if log_decay is not None:
        decayed = namespace(key).exp(log_decay) * key
    share = ones((*key.shape[:-1], 1), like=key) if beta is None else beta
    terms = Terms(
        query,
        scaled(momentum_beta, key),
        value,
        _both(log_decay, momentum_log_decay),
        decayed,
        early_erase=True,
        follow=share,
    )
    output, memory = form(state.memory, terms)
    return output, State(memory, None)


def _both(first: Array | None, second: Array | None) -> Array | None:
    """Return the log-decays of both memories side by side, ``(..., T, 2)``."""
    like = second if first is None else first
    if like is None:
        return None
    none = zeros(tuple(like.shape), like=like)
    return concat([none if x is None else x for x in (first, second)], axis=-1)


def _pair(sizes: Any) -> tuple[Any, ...]:
    """Return the last axes of two memories ``(..., K, V)``, one above the other."""
    return 2 * sizes["k"], sizes["v"]


MOMENTUM_DELTA_RULE = Definition(
    "momentum_delta_rule",
    {
        **QKV,
        "log_decay": "t",
        "momentum_log_decay": "t",
        "beta": "t",
        "momentum_beta": "t",
    },
    _attend,
    memory=_pair,
)


@operator(MOMENTUM_DELTA_RULE)
def momentum_delta_rule(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    log_decay: ArrayT | None = None,
    momentum_log_decay: ArrayT | None = None,
    beta: ArrayT | None = None,
    momentum_beta: ArrayT | None = None,
    **options: Unpack[Options[ArrayT]],
) -> AttentionResult[ArrayT]:
    r"""Gated delta rule with momentum: the memory follows a sum of its corrections.

    Parameters
    ----------
    query, key, value : array (..., T, K), (..., T, K), (..., T, V)
        As in `simple_gla`; keys as in `delta_rule`.
    log_decay : array (..., T), optional
        Natural logarithms of the decays of the memory, in ``[-inf, 0]``. Default: none.
    momentum_log_decay : array (..., T), optional
        The same for the momentum; with ``-inf`` this is `gated_delta_rule`. Default:
        the momentum forgets nothing.
    beta : array (..., T), optional
        Share of the momentum that the memory takes, in ``[0, 2]``. Default: 1.
    momentum_beta : array (..., T), optional
        Share of a correction that the momentum takes, zero or positive. Default: 1.

    Returns
    -------
    AttentionResult
        ``output (..., T, V)``; ``state`` with a memory ``(..., 2 K, V)``, the memory
        ``S`` above the momentum ``M``, and no normalizer.

    Raises
    ------
    TypeError, ValueError
        As `gated_delta_rule`; also if a log-decay of the momentum is positive, or a
        share of a correction negative.

    Notes
    -----
    .. math::

        \tilde S = \alpha_t S_{t-1}, \qquad
        M_t = \mu_t M_{t-1} + \eta_t k_t (v_t - \tilde S^T k_t)^T, \qquad
        S_t = \tilde S + \beta_t M_t, \qquad
        o_t = scale \; q_t^T S_t

    with :math:`\alpha = e^{log\_decay}`, :math:`\mu = e^{momentum\_log\_decay}`,
    :math:`\eta` the `momentum_beta`. A correction reaches token i from token j by
    :math:`\sum_{j \le r \le i} (\prod_{s>r}^i \alpha_s) \, \beta_r \,
    (\prod_{s>j}^r \mu_s)`, a product of two triangular matrices of decays. Published
    states are two arrays, and their ``M`` is ours with the other sign. Published
    kernels may erase along another key ``p``; here it is ``k``, as in their layer.

    Source: "MDN: Parallelizing Stepwise Momentum for Delta Linear Attention", arXiv
    2605.05838, 2026; the operator ``momentum_delta_rule`` of flash-linear-attention.

    Examples
    --------
    >>> import numpy as np, linkern
    >>> ones = np.ones((3, 1))
    >>> linkern.momentum_delta_rule(
    ...     ones, ones, 4 * ones, momentum_log_decay=np.log(np.full(3, 0.5))
    ... ).output[:, 0]
    array([4., 6., 5.])
    """
