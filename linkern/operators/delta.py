r"""Operators that overwrite: the delta rule and what became of it.

    S~ = Diag(exp(g_t)) S_{t-1},     S_t = S~ + k_t (v_t - S~^T a_t)^T,
    o_t = scale q_t^T S_t

Before a value is written, what the memory already holds along ``a_t`` is taken away.
"""

from typing import Unpack

from linkern.array import namespace, reshape
from linkern.core.recurrence import Terms
from linkern.operators.definition import QKV, Definition, scaled
from linkern.operators.forms import Form
from linkern.operators.micro_steps import at_step
from linkern.operators.register import Options, operator
from linkern.state import AttentionResult, State
from linkern.typing import Array, ArrayT

__all__ = [
    "comba",
    "delta_rule",
    "gated_delta_product",
    "gated_delta_rule",
    "gdn2",
    "kda",
    "oja",
]


def _overwrite(
    form: Form,
    state: State,
    *,
    query: Array,
    key: Array,
    value: Array,
    beta: Array | None,
    log_decay: Array | None = None,
) -> tuple[Array, State]:
    """Write ``beta (v - S~^T k)`` at ``k``."""
    terms = Terms(query, key, value, log_decay, key, beta=beta)
    output, memory = form(state.memory, terms)
    return output, State(memory, None)


def _corrected(
    form: Form,
    state: State,
    *,
    query: Array,
    key: Array,
    value: Array,
    auxiliary_key: Array,
    log_decay: Array | None,
    beta: Array | None,
) -> tuple[Array, State]:
    """Write ``beta (v - S^T p)`` at ``k``, with the memory as it was before."""
    terms = Terms(
        query, key, value, log_decay, auxiliary_key, early_erase=True, beta=beta
    )
    output, memory = form(state.memory, terms)
    return output, State(memory, None)


def _gated_overwrite(
    form: Form,
    state: State,
    *,
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None,
    erase_gate: Array | None,
    write_gate: Array | None,
) -> tuple[Array, State]:
    terms = Terms(
        query, key, scaled(write_gate, value), log_decay, scaled(erase_gate, key)
    )
    output, memory = form(state.memory, terms)
    return output, State(memory, None)


def _several_overwrites(
    form: Form,
    state: State,
    *,
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None,
    beta: Array | None,
) -> tuple[Array, State]:
    """Take n steps for each token: decay before the first, read after the last."""
    *lead, length, _ = query.shape
    steps = key.shape[-2] // length if length else 1
    terms = Terms(
        at_step(query, steps, last=True),
        key,
        scaled(beta, value),
        None if log_decay is None else at_step(log_decay, steps, last=False),
        scaled(beta, key),
    )
    read_out, memory = form(state.memory, terms)
    by_token = reshape(read_out, (*lead, length, steps, read_out.shape[-1]))
    return by_token[..., steps - 1, :], State(memory, None)


def _overwrite_keys(
    form: Form,
    state: State,
    *,
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None,
    beta: Array | None,
) -> tuple[Array, State]:
    """Exchange the roles of keys and values: the memory is transposed throughout."""
    terms = Terms(
        query,
        value,
        scaled(beta, key),
        log_decay,
        scaled(beta, value),
        transpose_state=True,
    )
    transposed = namespace(state.memory).matrix_transpose(state.memory)
    output, memory = form(transposed, terms)
    return output, State(namespace(memory).matrix_transpose(memory), None)


DELTA_RULE = Definition("delta_rule", {**QKV, "beta": "t"}, _overwrite, as_given=True)
GATED_DELTA_RULE = Definition(
    "gated_delta_rule",
    {**QKV, "log_decay": "t", "beta": "t"},
    _overwrite,
    as_given=True,
)
KDA = Definition(
    "kda", {**QKV, "log_decay": "tk", "beta": "t"}, _overwrite, as_given=True
)
GDN2 = Definition(
    "gdn2",
    {**QKV, "log_decay": "tk", "erase_gate": "tk", "write_gate": "tv"},
    _gated_overwrite,
)
COMBA = Definition(
    "comba",
    {**QKV, "auxiliary_key": "tk", "log_decay": "t", "beta": "t"},
    _corrected,
    required=("query", "key", "value", "auxiliary_key"),
    as_given=True,
)
GATED_DELTA_PRODUCT = Definition(
    "gated_delta_product",
    {"query": "tk", "key": "sk", "value": "sv", "log_decay": "t", "beta": "s"},
    _several_overwrites,
)
OJA = Definition(
    "oja",
    {**QKV, "log_decay": "tv", "beta": "t"},
    _overwrite_keys,
    transpose_state=True,
)


@operator(DELTA_RULE)
def delta_rule(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    beta: ArrayT | None = None,
    **options: Unpack[Options[ArrayT]],
) -> AttentionResult[ArrayT]:
    r"""Delta rule: a key's old value is taken away as its new one is written.

    Parameters
    ----------
    query, key, value : array (..., T, K), (..., T, K), (..., T, V)
        As in `simple_gla`. Keys are used as they are: normalise them first, as the
        models do, since the memory can grow without limit where ``beta |k|^2 > 2``.
    beta : array (..., T), optional
        How much of the old value is replaced, in ``[0, 2]``. Default: 1, all of it.

    Notes
    -----
    .. math::

        S_t = S_{t-1} + \beta_t k_t (v_t - S_{t-1}^T k_t)^T, \qquad
        o_t = scale \; q_t^T S_t

    Source: Schlag et al. 2021, "Linear Transformers Are Secretly Fast Weight
    Programmers"; Yang et al. 2024, "Parallelizing Linear Transformers with the Delta
    Rule over Sequence Length".

    Examples
    --------
    The second value replaces the first, which had the same key:

    >>> import numpy as np, linkern
    >>> ones = np.ones((2, 1))
    >>> linkern.delta_rule(ones, ones, np.asarray([[3.0], [5.0]])).output[:, 0]
    array([3., 5.])
    """


@operator(GATED_DELTA_RULE)
def gated_delta_rule(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    log_decay: ArrayT | None = None,
    beta: ArrayT | None = None,
    **options: Unpack[Options[ArrayT]],
) -> AttentionResult[ArrayT]:
    r"""Delta rule with one decay for each token: Gated DeltaNet, Qwen3-Next.

    Parameters
    ----------
    query, key, value : array (..., T, K), (..., T, K), (..., T, V)
        As in `simple_gla`; keys as in `delta_rule`.
    log_decay : array (..., T), optional
        Natural logarithms of the decays, in ``[-inf, 0]``. Default: none.
    beta : array (..., T), optional
        How much of the old value is replaced, in ``[0, 2]``. Default: 1.

    Notes
    -----
    .. math::

        \tilde S = e^{g_t} S_{t-1}, \qquad
        S_t = \tilde S + \beta_t k_t (v_t - \tilde S^T k_t)^T, \qquad
        o_t = scale \; q_t^T S_t

    What is erased is read from the *decayed* memory, unlike in `rwkv7` and `dplr`.
    Published kernels disagree about the order of `log_decay` and `beta`: pass them by
    name.

    Source: Yang et al. 2024, "Gated Delta Networks: Improving Mamba2 with Delta Rule",
    equation 10.

    Examples
    --------
    >>> import numpy as np, linkern
    >>> ones = np.ones((2, 1))
    >>> result = linkern.gated_delta_rule(
    ...     ones, ones, 4 * ones, log_decay=np.log([1.0, 0.5]), beta=np.full(2, 0.5)
    ... )
    >>> result.output[:, 0]
    array([2. , 2.5])
    """


@operator(KDA)
def kda(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    log_decay: ArrayT | None = None,
    beta: ArrayT | None = None,
    **options: Unpack[Options[ArrayT]],
) -> AttentionResult[ArrayT]:
    r"""Kimi delta attention: the delta rule with one decay for each key channel.

    Parameters
    ----------
    query, key, value : array (..., T, K), (..., T, K), (..., T, V)
        As in `simple_gla`; keys as in `delta_rule`.
    log_decay : array (..., T, K), optional
        *Natural* logarithms of the decays, in ``[-inf, 0]``; kernels of this operator
        often take logarithms to base 2. Default: none.
    beta : array (..., T), optional
        How much of the old value is replaced, in ``[0, 2]``. Default: 1.

    Notes
    -----
    .. math::

        \tilde S = \mathrm{Diag}(e^{g_t}) S_{t-1}, \qquad
        S_t = \tilde S + \beta_t k_t (v_t - \tilde S^T k_t)^T, \qquad
        o_t = scale \; q_t^T S_t

    Source: Kimi Team et al. 2025, "Kimi Linear: An Expressive, Efficient Attention
    Architecture", equation 1.

    Examples
    --------
    >>> import numpy as np, linkern
    >>> ones = np.ones((2, 1))
    >>> linkern.kda(ones, ones, 4 * ones, np.log([[1.0], [0.5]])).output[:, 0]
    array([4., 4.])
    """


@operator(GDN2)
def gdn2(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    log_decay: ArrayT | None = None,
    erase_gate: ArrayT | None = None,
    write_gate: ArrayT | None = None,
    **options: Unpack[Options[ArrayT]],
) -> AttentionResult[ArrayT]:
    r"""Gated delta rule with gates for each channel of what is erased and written.

    Parameters
    ----------
    query, key, value : array (..., T, K), (..., T, K), (..., T, V)
        As in `simple_gla`; keys as in `delta_rule`.
    log_decay : array (..., T, K), optional
        Natural logarithms of the decays, in ``[-inf, 0]``. Default: none.
    erase_gate : array (..., T, K), optional
        ``b``: how much of each channel of the key erases. Default: 1.
    write_gate : array (..., T, V), optional
        ``w``: how much of each channel of the value is written. Default: 1.

    Notes
    -----
    .. math::

        \tilde S = \mathrm{Diag}(e^{g_t}) S_{t-1}, \qquad
        S_t = \tilde S + k_t (w_t \odot v_t - \tilde S^T (b_t \odot k_t))^T, \qquad
        o_t = scale \; q_t^T S_t

    Equal to `kda` where both gates are ``beta`` in every channel.

    Source: the operator ``gdn2`` of flash-linear-attention.

    Examples
    --------
    >>> import numpy as np, linkern
    >>> ones = np.ones((2, 1))
    >>> linkern.gdn2(ones, ones, 4 * ones, None, 0 * ones, ones).output[:, 0]
    array([4., 8.])
    """


@operator(COMBA)
def comba(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    auxiliary_key: ArrayT,
    log_decay: ArrayT | None = None,
    beta: ArrayT | None = None,
    **options: Unpack[Options[ArrayT]],
) -> AttentionResult[ArrayT]:
    r"""Gated delta rule that erases along a key of its own.

    Parameters
    ----------
    query, key, value : array (..., T, K), (..., T, K), (..., T, V)
        As in `simple_gla`; keys as in `delta_rule`.
    auxiliary_key : array (..., T, K)
        ``p``: along which the memory is read for what is erased.
    log_decay, beta : array (..., T), optional
        As in `gated_delta_rule`.

    Notes
    -----
    .. math::

        S_t = e^{g_t} S_{t-1} + \beta_t k_t (v_t - S_{t-1}^T p_t)^T, \qquad
        o_t = scale \; q_t^T S_t

    What is erased is read from the memory *before* its decay, unlike in
    `gated_delta_rule`: the transition is a scalar plus a matrix of rank one. So do the
    chunked and the fused kernels of flash-linear-attention; its function
    ``naive_recurrent_comba`` reads after the decay and is another operator. The paper's
    correction of the query (``q - d p``) is outside.

    Source: Hu et al. 2025, "Comba: Improving Bilinear RNNs with Closed-loop Control".

    Examples
    --------
    >>> import numpy as np, linkern
    >>> ones = np.ones((2, 1))
    >>> linkern.comba(ones, ones, 4 * ones, 0.5 * ones).output[:, 0]
    array([4., 6.])
    """


@operator(GATED_DELTA_PRODUCT)
def gated_delta_product(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    log_decay: ArrayT | None = None,
    beta: ArrayT | None = None,
    **options: Unpack[Options[ArrayT]],
) -> AttentionResult[ArrayT]:
    r"""Several steps of the delta rule for each token: a product of reflections.

    Parameters
    ----------
    query : array (..., T, K)
        Queries; float16, bfloat16, float32 or float64.
    key : array (..., n T, K)
        Keys, ``n`` for each token, those of a token next to each other.
    value : array (..., n T, V)
        Values, likewise.
    log_decay : array (..., T), optional
        Natural logarithms of the decays, in ``[-inf, 0]``, once for each token.
    beta : array (..., n T), optional
        How much of the old value each step replaces, in ``[0, 2]``. Default: 1.
    **options
        `scale` (default ``K^-0.5``), `initial_state`, `cu_seqlens` (in tokens), `form`
        and `chunk_size` (in steps), as in `simple_gla`.

    Raises
    ------
    TypeError, ValueError
        As `gated_delta_rule`; also if the length of `key` is no multiple of that of
        `query`.

    Notes
    -----
    The memory decays once, before a token's first step, and is read once, after its
    last. Each step is that of `delta_rule`. With ``n = 1`` this is `gated_delta_rule`.

    Source: Siems et al. 2025, "DeltaProduct: Improving State-Tracking in Linear RNNs
    via Householder Products".

    Examples
    --------
    >>> import numpy as np, linkern
    >>> query, key = np.ones((1, 2)), np.eye(2)
    >>> value = np.asarray([[3.0], [5.0]])
    >>> linkern.gated_delta_product(query, key, value, scale=1.0).output
    array([[8.]])
    """


@operator(OJA)
def oja(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    log_decay: ArrayT | None = None,
    beta: ArrayT | None = None,
    **options: Unpack[Options[ArrayT]],
) -> AttentionResult[ArrayT]:
    r"""Gated Oja rule: the delta rule with keys and values exchanged.

    Parameters
    ----------
    query, key, value : array (..., T, K), (..., T, K), (..., T, V)
        As in `simple_gla`. Values are used as they are: normalise them first, as the
        models do.
    log_decay : array (..., T, V), optional
        Natural logarithms of the decays of each *value* channel, in ``[-inf, 0]``.
    beta : array (..., T), optional
        How much of the old key is replaced, in ``[0, 2]``. Default: 1.

    Notes
    -----
    .. math::

        \tilde S = S_{t-1} \mathrm{Diag}(e^{g_t}), \qquad
        S_t = \tilde S + \beta_t (k_t - \tilde S v_t) v_t^T, \qquad
        o_t = scale \; q_t^T S_t

    The erase acts from the right: on the transposed memory this is `kda` with keys and
    values exchanged, but the query still reads along the keys.

    Source: the operator ``gated_oja_rule`` of flash-linear-attention.

    Examples
    --------
    >>> import numpy as np, linkern
    >>> ones = np.ones((2, 1))
    >>> linkern.oja(ones, np.asarray([[3.0], [5.0]]), ones).output[:, 0]
    array([3., 5.])
    """
