r"""Operators that grew out of recurrent networks: HGRN and the RWKV line."""

from typing import Unpack

from linkern.array import concat, mT, namespace, ones
from linkern.core.logspace import averaging, sigmoid
from linkern.core.recurrence import Terms
from linkern.operators.definition import QKV, Definition
from linkern.operators.forms import Form
from linkern.operators.register import Options, operator
from linkern.state import AttentionResult, State
from linkern.typing import Array, ArrayT

__all__ = ["hgrn", "rwkv4", "rwkv6"]


def _channels(
    form: Form, memory: Array, written: Array, log_decay: Array | None
) -> tuple[Array, Array]:
    """Run ``h = exp(g) h + x`` for each channel; `memory` is ``(..., 1, V)``.

    Channels are rows of a memory with one column: what is read along that column is the
    memory itself.
    """
    one = ones((*written.shape[:-1], 1), like=written)
    terms = Terms(one, written, one, log_decay, transpose_state=True)
    output, after = form(mT(memory), terms)
    return output, mT(after)


def _hgrn(
    form: Form, state: State, *, value: Array, log_decay: Array | None
) -> tuple[Array, State]:
    output, memory = _channels(form, state.memory, value, log_decay)
    return output, State(memory, None)


def _rwkv4(
    form: Form,
    state: State,
    *,
    key: Array,
    value: Array,
    log_decay: Array | None,
    bonus: Array | None,
) -> tuple[Array, State]:
    assert state.normalizer is not None
    average = averaging(key, state.normalizer, log_decay)
    means, memory = _channels(
        form, state.memory, average.weight * value, average.log_decay
    )
    before = concat([state.memory, means[..., :-1, :]], axis=-2)
    ahead = (key if bonus is None else key + bonus) - average.before
    # Two weights that add up to 1, each accurate where it is small.
    output = sigmoid(ahead) * value + sigmoid(-ahead) * before
    if value.shape[-2] == 0:
        return value, state
    return output, State(memory, average.last)


def _rwkv6(
    form: Form,
    state: State,
    *,
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None,
    bonus: Array | None,
) -> tuple[Array, State]:
    terms = Terms(query, key, value, log_decay, early_read=True)
    output, memory = form(state.memory, terms)
    if bonus is not None:
        score = namespace(query).sum(query * bonus * key, axis=-1, keepdims=True)
        output = output + score * value
    return output, State(memory, None)


HGRN = Definition(
    "hgrn",
    {"value": "tv", "log_decay": "tv"},
    _hgrn,
    memory=lambda n: (1, n["v"]),
    required=("value",),
    inverse_root_scale=False,
    transpose_state=True,
)
RWKV4 = Definition(
    "rwkv4",
    {"key": "tv", "value": "tv", "log_decay": "v", "bonus": "v"},
    _rwkv4,
    memory=lambda n: (1, n["v"]),
    normalizer=lambda n: (n["v"],),
    empty=-float("inf"),
    required=("key", "value"),
    inverse_root_scale=False,
    affine=False,
)
RWKV6 = Definition(
    "rwkv6",
    {**QKV, "log_decay": "tk", "bonus": "k"},
    _rwkv6,
)


@operator(HGRN)
def hgrn(
    value: ArrayT, log_decay: ArrayT | None = None, **options: Unpack[Options[ArrayT]]
) -> AttentionResult[ArrayT]:
    r"""Element-wise gated recurrence: the core of HGRN and of a GRU without its loop.

    Parameters
    ----------
    value : array (..., T, V)
        What is added to the state; float16, bfloat16, float32 or float64. HGRN passes
        ``(1 - f) * candidate``.
    log_decay : array (..., T, V), optional
        Natural logarithms of the forget gates ``f``, in ``[-inf, 0]``. Default: none.

    Returns
    -------
    AttentionResult
        ``output (..., T, V)``, the states themselves; ``state`` with a memory
        ``(..., 1, V)`` and no normalizer.

    Notes
    -----
    .. math:: h_t = e^{g_t} \odot h_{t-1} + x_t, \qquad o_t = h_t

    Source: Qin et al. 2023, "Hierarchically Gated Recurrent Neural Network for Sequence
    Modeling", equation 5.

    Examples
    --------
    >>> import numpy as np, linkern
    >>> linkern.hgrn(np.ones((3, 1)), np.log(np.full((3, 1), 0.5))).output[:, 0]
    array([1.  , 1.5 , 1.75])
    """


@operator(RWKV4)
def rwkv4(
    key: ArrayT,
    value: ArrayT,
    log_decay: ArrayT | None = None,
    bonus: ArrayT | None = None,
    **options: Unpack[Options[ArrayT]],
) -> AttentionResult[ArrayT]:
    r"""RWKV-4's ``wkv``: a running average with exponential weights.

    Parameters
    ----------
    key : array (..., T, V)
        Logarithms of the weights, of any size; float16, bfloat16, float32 or float64.
    value : array (..., T, V)
        What is averaged; same library, device and dtype as `key`.
    log_decay : array (..., V), optional
        ``w``: natural logarithm of each channel's decay, in ``[-inf, 0]``; the model
        passes ``-exp(w)``. Default: none.
    bonus : array (..., V), optional
        ``u``: added to the weight's logarithm of the current token. Default: 0.

    Returns
    -------
    AttentionResult
        ``output (..., T, V)``; ``state`` with the average as memory ``(..., 1, V)`` and
        the *logarithm* of the sum of weights as normalizer ``(..., V)``, ``-inf``
        before the first token. Such states do not add up with `State.combine`.

    Notes
    -----
    .. math::

        o_t = \frac{\sum_{j<t} e^{(t-1-j) w + k_j} v_j + e^{u + k_t} v_t}
                   {\sum_{j<t} e^{(t-1-j) w + k_j} + e^{u + k_t}}

    The read is before the update, with a bonus for the current token. No running
    maximum is subtracted: the average and the logarithm of its weight are carried, and
    neither can overflow. The original carries ``(a, b, p)``; here the memory is ``a/b``
    and the normalizer ``p + log b``.

    Source: Peng et al. 2023, "RWKV: Reinventing RNNs for the Transformer Era",
    equation 16.

    Examples
    --------
    >>> import numpy as np, linkern
    >>> value = np.asarray([[3.0], [6.0], [9.0]])
    >>> linkern.rwkv4(np.zeros((3, 1)), value).output
    array([[3. ],
           [4.5],
           [6. ]])
    """


@operator(RWKV6)
def rwkv6(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    log_decay: ArrayT | None = None,
    bonus: ArrayT | None = None,
    **options: Unpack[Options[ArrayT]],
) -> AttentionResult[ArrayT]:
    r"""RWKV-6's ``wkv`` (with constant decays, RWKV-5's): read before write.

    Parameters
    ----------
    query, key, value : array (..., T, K), (..., T, K), (..., T, V)
        Receptance, key and value, as in `simple_gla`.
    log_decay : array (..., T, K), optional
        ``w``: natural logarithms of the decays, in ``[-inf, 0]``; the model passes
        ``-exp(w)``. Default: none.
    bonus : array (..., K), optional
        ``u``: weight of the current token in each key channel, ``(H, K)`` for one each
        head. Default: 0, the current token is not read.
    **options
        `scale` (default ``K^-0.5``, that of flash-linear-attention; the model has 1),
        `initial_state`, `cu_seqlens`, `form` and `chunk_size`, as in `simple_gla`.

    Notes
    -----
    .. math::

        o_t = scale \; q_t^T (S_{t-1} + (u \odot k_t) v_t^T), \qquad
        S_t = \mathrm{Diag}(e^{w_t}) S_{t-1} + k_t v_t^T

    The read is *before* the update and before this token's decay.

    Source: Peng et al. 2024, "Eagle and Finch: RWKV with Matrix-Valued States and
    Dynamic Recurrence", equations 16 to 19.

    Examples
    --------
    >>> import numpy as np, linkern
    >>> ones = np.ones((3, 1))
    >>> linkern.rwkv6(ones, ones, ones, bonus=np.asarray([0.5])).output[:, 0]
    array([0.5, 1.5, 2.5])
    """
