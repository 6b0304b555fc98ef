r"""Operators whose transition is a diagonal plus a matrix of rank one.

    S_t = Diag(exp(g_t)) S_{t-1} + b_t (a_t^T S_{t-1}) + k_t v_t^T

Unlike the delta rule's, the erase reads the memory *before* its decay, and writes along
a vector of its own. So a token is two steps of the recurrence: one that decays and
erases, one that writes.
"""

from typing import Unpack

from linkern.array import concat, reshape, zeros
from linkern.core.recurrence import Terms
from linkern.operators.definition import QKV, Definition, scaled
from linkern.operators.forms import Form
from linkern.operators.register import Options, operator
from linkern.state import AttentionResult, State
from linkern.typing import Array, ArrayT

__all__ = ["dplr", "iplr", "rwkv7"]


def _two_steps(first: Array, second: Array) -> Array:
    """Interleave what the first and the second steps of all tokens need."""
    *lead, length, size = first.shape
    both = concat([first[..., None, :], second[..., None, :]], axis=-2)
    return reshape(both, (*lead, 2 * length, size))


def _low_rank(
    form: Form,
    state: State,
    *,
    query: Array,
    key: Array,
    value: Array,
    a: Array,
    b: Array,
    log_decay: Array | None = None,
) -> tuple[Array, State]:
    def nothing(like: Array) -> Array:
        return zeros(tuple(like.shape), like=like)

    if log_decay is not None:
        log_decay = _two_steps(log_decay, nothing(log_decay))
    terms = Terms(
        _two_steps(nothing(query), query),
        _two_steps(b, key),
        _two_steps(nothing(value), value),
        log_decay,
        _two_steps(-a, nothing(a)),
        early_erase=True,
    )
    read_out, memory = form(state.memory, terms)
    *lead, rows, size = read_out.shape
    by_token = reshape(read_out, (*lead, rows // 2, 2, size))
    return by_token[..., 1, :], State(memory, None)


def _removal(
    form: Form,
    state: State,
    *,
    removal_key: Array,
    removal_rate: Array | None,
    **inputs: Array,
) -> tuple[Array, State]:
    replaced = scaled(removal_rate, removal_key)
    return _low_rank(form, state, a=-removal_key, b=replaced, **inputs)


DPLR = Definition(
    "dplr",
    {**QKV, "a": "tk", "b": "tk", "log_decay": "tk"},
    _low_rank,
    required=("query", "key", "value", "a", "b"),
)
IPLR = Definition(
    "iplr",
    {**QKV, "a": "tk", "b": "tk"},
    _low_rank,
    required=("query", "key", "value", "a", "b"),
)
RWKV7 = Definition(
    "rwkv7",
    {**QKV, "log_decay": "tk", "removal_key": "tk", "removal_rate": "tk"},
    _removal,
    required=("query", "key", "value", "removal_key"),
    inverse_root_scale=False,
)


@operator(DPLR)
def dplr(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    a: ArrayT,
    b: ArrayT,
    log_decay: ArrayT | None = None,
    **options: Unpack[Options[ArrayT]],
) -> AttentionResult[ArrayT]:
    r"""Generalised delta rule with a transition that is diagonal plus low rank.

    Parameters
    ----------
    a, b : array (..., T, K)
        The part of rank one, ``b a^T``: read along `a`, written along `b`. The sign is
        plus: to erase, one of them is negative.
    log_decay : array (..., T, K), optional
        Natural logarithms of the decays, in ``[-inf, 0]``. Default: none.
    **options
        `scale` (default ``K^-0.5``), `initial_state`, `cu_seqlens`, `form` and
        `chunk_size` (in steps, two for each token), as in `simple_gla`.

    Notes
    -----
    .. math::

        S_t = \mathrm{Diag}(e^{g_t}) S_{t-1} + b_t (a_t^T S_{t-1}) + k_t v_t^T, \qquad
        o_t = scale \; q_t^T S_t

    ``a`` reads the memory *before* its decay; `kda` reads it after. One form turns into
    the other with ``a e^{-g}``, which overflows for strong decays, so both are here.

    Source: the generalised delta rule of flash-linear-attention; Peng et al. 2025,
    "RWKV-7 Goose with Expressive Dynamic State Evolution", equation 15.

    Examples
    --------
    >>> import numpy as np, linkern
    >>> ones = np.ones((2, 1))
    >>> linkern.dplr(ones, ones, 4 * ones, -ones, 0.5 * ones).output[:, 0]
    array([4., 6.])
    """


@operator(IPLR)
def iplr(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    a: ArrayT,
    b: ArrayT,
    **options: Unpack[Options[ArrayT]],
) -> AttentionResult[ArrayT]:
    r"""Generalised delta rule with a transition that is the identity plus low rank.

    Parameters
    ----------
    a, b : array (..., T, K)
        The part of rank one, ``b a^T``, as in `dplr`.
    **options
        `scale` (default ``K^-0.5``), `initial_state`, `cu_seqlens`, `form` and
        `chunk_size` (in steps, two for each token), as in `simple_gla`.

    Notes
    -----
    .. math::

        S_t = S_{t-1} + b_t (a_t^T S_{t-1}) + k_t v_t^T, \qquad
        o_t = scale \; q_t^T S_t

    `dplr` without decay; `delta_rule` where ``a = -k``, ``b = beta k`` and the value is
    ``beta v``.

    Source: the generalised delta rule of flash-linear-attention.

    Examples
    --------
    >>> import numpy as np, linkern
    >>> ones = np.ones((2, 1))
    >>> linkern.iplr(ones, ones, 4 * ones, -ones, ones).output[:, 0]
    array([4., 4.])
    """


@operator(RWKV7)
def rwkv7(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    log_decay: ArrayT | None,
    removal_key: ArrayT,
    removal_rate: ArrayT | None = None,
    **options: Unpack[Options[ArrayT]],
) -> AttentionResult[ArrayT]:
    r"""RWKV-7's ``wkv``: decay, removal and replacement for each channel.

    Parameters
    ----------
    query, key, value : array (..., T, K), (..., T, K), (..., T, V)
        Receptance, replacement key and value, as in `simple_gla`.
    log_decay : array (..., T, K) or None
        Natural logarithms of the decays ``w``, in ``[-inf, 0]``; the model passes
        ``-exp(-0.5) sigmoid(d)``. None for no decay.
    removal_key : array (..., T, K)
        Removal key, of unit length in the model.
    removal_rate : array (..., T, K), optional
        In-context learning rate of each channel. Default: 1.
    **options
        `scale` (default 1, that of the model and of ``chunk_rwkv7``; another kernel of
        the same package defaults to ``K^-0.5``), `initial_state`, `cu_seqlens`, `form`
        and `chunk_size` (in steps, two for each token), as in `simple_gla`.

    Returns
    -------
    AttentionResult
        ``output (..., T, V)``; ``state`` with a memory ``(..., K, V)`` and no
        normalizer. The model's own code keeps the transposed memory, ``(..., V, K)``.

    Notes
    -----
    With removal key :math:`\kappa` and rate :math:`\alpha`,

    .. math::

        S_t = \mathrm{Diag}(e^{w_t}) S_{t-1}
              - (\alpha_t \odot \kappa_t) (\kappa_t^T S_{t-1}) + k_t v_t^T, \qquad
        o_t = scale \; q_t^T S_t

    `dplr` with ``a = -removal_key`` and ``b = removal_rate * removal_key``: what is
    removed is read *before* the decay.

    Source: Peng et al. 2025, "RWKV-7 Goose with Expressive Dynamic State Evolution",
    equations 15 to 17.

    Examples
    --------
    >>> import numpy as np, linkern
    >>> ones = np.ones((2, 1))
    >>> linkern.rwkv7(ones, ones, 4 * ones, None, ones, 0.5 * ones).output[:, 0]
    array([4., 6.])
    """
