r"""Operators with a fixed number of slots: two passes with a softmax in between.

The first pass writes keys into slots and reads each slot's score for the query; the
second writes values into the same slots and reads them by the softmax of the scores.
"""

from typing import Unpack

from linkern.array import concat, softmax
from linkern.core.logspace import averaging
from linkern.core.recurrence import Terms
from linkern.operators.definition import QKV, Definition
from linkern.operators.forms import Form
from linkern.operators.register import Options, operator
from linkern.state import AttentionResult, State
from linkern.typing import Array, ArrayT

__all__ = ["abc", "gsa"]


def _two_passes(
    form: Form,
    memory: Array,
    *,
    query: Array,
    key: Array,
    value: Array,
    slots: Array,
    log_decay: Array | None,
) -> tuple[Array, Array]:
    size = key.shape[-1]
    keys, values = memory[..., :size], memory[..., size:]
    scores, keys = form(keys, Terms(query, slots, key, log_decay, transpose_state=True))
    output, values = form(values, Terms(softmax(scores), slots, value, log_decay))
    return output, concat([keys, values], axis=-1)


def _gsa(form: Form, state: State, **inputs: Array) -> tuple[Array, State]:
    output, memory = _two_passes(form, state.memory, **inputs)
    return output, State(memory, None)


def _abc(
    form: Form, state: State, *, query: Array, key: Array, value: Array, slots: Array
) -> tuple[Array, State]:
    if key.shape[-2] == 0:
        return value, state
    assert state.normalizer is not None
    average = averaging(slots, state.normalizer)
    output, memory = _two_passes(
        form,
        state.memory,
        query=query,
        key=key,
        value=value,
        slots=average.weight,
        log_decay=average.log_decay,
    )
    return output, State(memory, average.last)


GSA = Definition(
    "gsa",
    {**QKV, "slots": "tm", "log_decay": "tm"},
    _gsa,
    memory=lambda n: (n["m"], n["k"] + n["v"]),
    required=("query", "key", "value", "slots"),
)
ABC = Definition(
    "abc",
    {**QKV, "slots": "tm"},
    _abc,
    memory=lambda n: (n["m"], n["k"] + n["v"]),
    normalizer=lambda n: (n["m"],),
    empty=-float("inf"),
    required=("query", "key", "value", "slots"),
    affine=False,
)


@operator(GSA)
def gsa(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    slots: ArrayT,
    log_decay: ArrayT | None = None,
    **options: Unpack[Options[ArrayT]],
) -> AttentionResult[ArrayT]:
    r"""Gated slot attention: softmax attention over a fixed number of slots.

    Parameters
    ----------
    slots : array (..., T, M)
        How much of each token is written into each of ``M`` slots; the model passes
        ``1 - exp(log_decay)``.
    log_decay : array (..., T, M), optional
        Natural logarithms of each slot's decay, in ``[-inf, 0]``. Default: none. (The
        kernel of flash-linear-attention turns a missing decay into `abc` instead.)
    **options
        `scale` (default ``K^-0.5``, inside the softmax), `initial_state`, `cu_seqlens`,
        `form` and `chunk_size`, as in `simple_gla`.

    Returns
    -------
    AttentionResult
        ``output (..., T, V)``; ``state`` with a memory ``(..., M, K + V)``, the keys
        and the values of each slot side by side, and no normalizer.

    Notes
    -----
    .. math::

        \tilde K_t = \mathrm{Diag}(e^{g_t}) \tilde K_{t-1} + s_t k_t^T, \qquad
        \tilde V_t = \mathrm{Diag}(e^{g_t}) \tilde V_{t-1} + s_t v_t^T, \qquad
        o_t = \tilde V_t^T \mathrm{softmax}(scale \; \tilde K_t q_t)

    Source: Zhang et al. 2024, "Gated Slot Attention for Efficient Linear-Time Sequence
    Modeling", equation 9.

    Examples
    --------
    With one slot the softmax is 1, and values add up:

    >>> import numpy as np, linkern
    >>> ones = np.ones((3, 1))
    >>> linkern.gsa(ones, ones, ones, ones).output[:, 0]
    array([1., 2., 3.])
    """


@operator(ABC)
def abc(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    slots: ArrayT,
    **options: Unpack[Options[ArrayT]],
) -> AttentionResult[ArrayT]:
    r"""Attention with bounded-memory control: slots hold running softmax averages.

    Parameters
    ----------
    slots : array (..., T, M)
        Logarithms of the weights with which each token is averaged into each slot, of
        any size.
    **options
        `scale` (default ``K^-0.5``, inside the softmax), `initial_state`, `cu_seqlens`,
        `form` and `chunk_size`, as in `simple_gla`.

    Returns
    -------
    AttentionResult
        ``output (..., T, V)``; ``state`` with a memory ``(..., M, K + V)``, the average
        key and value of each slot side by side, and as normalizer ``(..., M)`` the
        *logarithm* of the sum of its weights, ``-inf`` before the first token. Such
        states do not add up with `State.combine`.

    Notes
    -----
    With :math:`z_t = \log \sum_{j \le t} e^{s_j}`, `gsa` with decays :math:`z_{t-1} -
    z_t` and slots :math:`e^{s_t - z_t}`. The original clamps the logits to
    ``[-32, 32]``; nothing is clamped here.

    Source: Peng et al. 2022, "ABC: Attention with Bounded-memory Control", in the
    causal form of flash-linear-attention.

    Examples
    --------
    With one slot the softmax is 1, and values are averaged:

    >>> import numpy as np, linkern
    >>> ones = np.ones((3, 1))
    >>> value = np.asarray([[3.0], [6.0], [9.0]])
    >>> linkern.abc(ones, ones, value, 0 * ones).output[:, 0].round(12)
    array([3. , 4.5, 6. ])
    """
