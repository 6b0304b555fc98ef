r"""Operators that forget: one decay for a head, for a token, or for each key channel.

S_t = Diag(exp(g_t)) S_{t-1} + k_t v_t^T,      o_t = scale q_t^T S_t
"""

import math
from collections.abc import Callable
from typing import Any, Unpack

from linkern import validate
from linkern.array import broadcast_to, device_of, namespace
from linkern.core.recurrence import Terms
from linkern.operators.definition import (
    QKV,
    Definition,
    Inputs,
    Prepared,
    prepare_terms,
)
from linkern.operators.forms import Form
from linkern.operators.register import Options, operator
from linkern.state import AttentionResult, State
from linkern.typing import Array, ArrayT

__all__ = ["gla", "lightning_attention", "retention", "simple_gla", "ssd"]


def _attend(
    form: Form,
    state: State,
    *,
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None,
) -> tuple[Array, State]:
    output, memory = form(state.memory, Terms(query, key, value, log_decay))
    return output, State(memory, None)


def _by_head(form: Form, state: State, **inputs: Any) -> tuple[Array, State]:
    """Repeat one decay for each head along the tokens."""
    query, log_decay = inputs["query"], inputs.pop("log_decay")
    repeated = broadcast_to(log_decay, (*query.shape[:-1], 1))
    return _attend(form, state, log_decay=repeated, **inputs)


def _prepare_retention(
    definition: Definition,
    inputs: Inputs,
    settings: Inputs,
    form: Form,
    scale: float | None,
) -> Prepared:
    """Fill in the decays of the paper."""
    if inputs["log_decay"] is None:
        inputs = {**inputs, "log_decay": _for_heads(inputs["query"], _retained)}
    return prepare_terms(definition, inputs, settings, form, scale)


def _prepare_lightning(
    definition: Definition,
    inputs: Inputs,
    settings: Inputs,
    form: Form,
    scale: float | None,
) -> Prepared:
    """Fill in the decays of the layer."""
    depth = _depth(settings["layer"], settings["layers"])
    if inputs["log_decay"] is None:  # a block of heads gets those of its heads
        log_decay = _for_heads(inputs["query"], lambda h, heads: -8 * h / heads * depth)
        inputs = {**inputs, "log_decay": log_decay}
    return prepare_terms(definition, inputs, settings, form, scale)


def _for_heads(query: Array, log_decay_of: Callable[[Any, int], Any]) -> Array:
    """Return ``log_decay_of(head, heads)`` for each head of `query`, ``(H,)``."""
    wide = validate.wide_like("query", query)
    heads = int(query.shape[-3]) if query.ndim > 2 else 1
    xp, device = namespace(wide), device_of(wide)
    head = xp.astype(xp.arange(heads, device=device), wide.dtype)
    log_decay: Array = log_decay_of(head, heads)
    return log_decay if query.ndim > 2 else log_decay[0]


def _retained(head: Any, heads: int) -> Any:
    """Return the log-decays of the paper: ``log(1 - 2^(-5 - h))``."""
    del heads
    xp = namespace(head)
    return xp.log1p(-xp.exp((head + 5) * -math.log(2)))


def _depth(layer: Any, layers: Any) -> float:
    """Return ``1 - layer / layers`` after checking both."""
    which = validate.dimension("layer", layer)
    many = validate.dimension("layers", layers)
    if which >= many:
        msg = f"`layer` must be less than `layers`, got {layer} and {layers}."
        raise ValueError(msg)
    return 1 - which / many


RETENTION = Definition(
    "retention",
    {**QKV, "log_decay": ""},
    _by_head,
    as_given=True,
    prepare=_prepare_retention,
)
LIGHTNING_ATTENTION = Definition(
    "lightning_attention",
    {**QKV, "log_decay": ""},
    _by_head,
    as_given=True,
    prepare=_prepare_lightning,
)
SIMPLE_GLA = Definition("simple_gla", {**QKV, "log_decay": "t"}, _attend, as_given=True)
GLA = Definition("gla", {**QKV, "log_decay": "tk"}, _attend, as_given=True)


@operator(RETENTION)
def retention(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    *,
    log_decay: ArrayT | None = None,
    **options: Unpack[Options[ArrayT]],
) -> AttentionResult[ArrayT]:
    r"""Retention: one fixed decay for each head.

    Parameters
    ----------
    query, key : array (..., H, T, K)
        Queries and keys; float16, bfloat16, float32 or float64.
    value : array (..., H, T, V)
        Values; same library, device and dtype as `query`.
    log_decay : array (H,), optional
        Natural logarithm of each head's decay, at most 0. Default:
        ``log(1 - 2^(-5 - h))`` for head ``h``, the paper's; without an axis of heads,
        that of head 0.

    Returns
    -------
    AttentionResult
        ``output (..., H, T, V)``; ``state`` with a memory ``(..., H, K, V)`` and no
        normalizer.

    Notes
    -----
    .. math:: S_t = \gamma_h S_{t-1} + k_t v_t^T, \qquad o_t = scale \; q_t^T S_t

    The paper's group norm, its gate and its rotation of queries and keys are outside.
    The state is ``S_t``; some sequence-parallel codes carry ``gamma S_t`` instead.

    Source: Sun et al. 2023, "Retentive Network: A Successor to Transformer for Large
    Language Models", equations 5 to 7.

    Examples
    --------
    >>> import numpy as np, linkern
    >>> ones = np.ones((1, 3, 1))
    >>> linkern.retention(ones, ones, ones, log_decay=np.log([0.5])).output[0, :, 0]
    array([1.  , 1.5 , 1.75])
    """


@operator(LIGHTNING_ATTENTION)
def lightning_attention(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    *,
    layer: int = 0,
    layers: int = 1,
    **options: Unpack[Options[ArrayT]],
) -> AttentionResult[ArrayT]:
    r"""Lightning attention: fixed decays that grow with the head and shrink with depth.

    Parameters
    ----------
    query, key : array (..., H, T, K)
        Queries and keys; float16, bfloat16, float32 or float64.
    value : array (..., H, T, V)
        Values; same library, device and dtype as `query`.
    layer, layers : int
        Which layer of how many this is, counted from 0.

    Returns
    -------
    AttentionResult
        ``output (..., H, T, V)``; ``state`` with a memory ``(..., H, K, V)`` and no
        normalizer.

    Raises
    ------
    TypeError, ValueError
        As `simple_gla`; also if `layer` is not one of `layers`.

    Notes
    -----
    .. math::

        S_t = e^{g_h} S_{t-1} + k_t v_t^T, \qquad
        g_h = -\frac{8 h}{H} \left(1 - \frac{layer}{layers}\right), \qquad
        o_t = scale \; q_t^T S_t

    Head 0 never forgets. This is flash-linear-attention's slope, linear in the head;
    TransNormerLLM and LASP use the ALiBi slopes ``2^(-8 (h + 1) / H)`` under the same
    name: for those, pass ``log_decay`` to `retention`.

    Source: Qin et al. 2024, "Lightning Attention-2: A Free Lunch for Handling Unlimited
    Sequence Lengths in Large Language Models".

    Examples
    --------
    >>> import numpy as np, linkern
    >>> ones = np.ones((2, 3, 1))
    >>> linkern.lightning_attention(ones, ones, ones).output[0, :, 0]
    array([1., 2., 3.])
    """


@operator(SIMPLE_GLA)
def simple_gla(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    log_decay: ArrayT | None = None,
    **options: Unpack[Options[ArrayT]],
) -> AttentionResult[ArrayT]:
    r"""Linear attention with one decay for each token: the core of Mamba-2 (SSD).

    Parameters
    ----------
    query, key : array (..., T, K)
        Queries and keys (``C`` and ``B`` of Mamba-2); float16, bfloat16, float32 or
        float64. Leading axes are batch and heads.
    value : array (..., T, V)
        Values (``x dt`` of Mamba-2); same library, device and dtype as `query`. It may
        have a multiple of the heads of `query` and `key`: head ``h`` of those then
        serves consecutive value heads.
    log_decay : array (..., T), optional
        Natural logarithms of the decays, in ``[-inf, 0]`` (``A dt`` of Mamba-2).
        Default: nothing is forgotten.
    scale : float, optional
        Factor on the query, dimensionless. Default ``K^-0.5``; Mamba-2 has 1.
    initial_state : State or array, optional
        State of the tokens before these: memory ``(..., K, V)`` in the accumulation
        dtype, no normalizer; an array is the memory. Where ``K == V`` a transposed
        memory cannot be told from a right one. Default: no tokens.
    cu_seqlens : sequence or array of int, optional
        Offsets of packed sequences along the tokens: ``N + 1`` numbers that begin with
        0 and do not decrease, in a list or in an array of any library and device.
        States then have the sequences as their first axis; rows behind the last offset
        give zeros.
    form : {"auto", "recurrent", "chunkwise", "parallel"}
        Order of the sums. "auto" is "chunkwise", and CUDA kernels on arrays of CuPy. On
        tensors of PyTorch on a CPU "auto" and "recurrent" run NumPy's kernels, the
        others operations of PyTorch. All are differentiable.
    chunk_size : int, optional
        Tokens per chunk of the chunkwise form. Default 64, on NumPy 32.

    Returns
    -------
    AttentionResult
        ``output (..., T, V)`` in the dtype of `query`; ``state`` after the last token,
        with a memory ``(..., K, V)`` in float32 or wider and no normalizer.

    Raises
    ------
    TypeError
        If an input is not a real floating-point array, the inputs mix libraries or
        dtypes, or an option has the wrong type.
    ValueError
        If shapes do not fit, a log-decay is positive, offsets decrease or exceed the
        length, or an option is out of range.

    Notes
    -----
    .. math:: S_t = e^{g_t} S_{t-1} + k_t v_t^T, \qquad o_t = scale \; q_t^T S_t

    The read is after the update. A log-decay of ``-inf`` forgets everything before its
    token. Also called `ssd`.

    Source: Yang et al. 2024, "Gated Linear Attention Transformers with Hardware-
    Efficient Training"; Dao and Gu 2024, "Transformers are SSMs".

    Examples
    --------
    >>> import numpy as np, linkern
    >>> ones = np.ones((3, 1))
    >>> decay = np.log([1.0, 0.5, 0.5])
    >>> linkern.simple_gla(ones, ones, ones, decay).output[:, 0]
    array([1.  , 1.5 , 1.75])
    """


ssd = simple_gla


@operator(GLA)
def gla(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    log_decay: ArrayT | None = None,
    **options: Unpack[Options[ArrayT]],
) -> AttentionResult[ArrayT]:
    r"""Gated linear attention: one decay for each token and key channel.

    Parameters
    ----------
    log_decay : array (..., T, K), optional
        Natural logarithms of the decays of each key channel, in ``[-inf, 0]``.
        Default: nothing is forgotten.

    Notes
    -----
    .. math::

        S_t = \mathrm{Diag}(e^{g_t}) S_{t-1} + k_t v_t^T, \qquad
        o_t = scale \; q_t^T S_t

    The read is after the update, and the decay acts before the write.

    Source: Yang et al. 2024, "Gated Linear Attention Transformers with Hardware-
    Efficient Training", equation 3.

    Examples
    --------
    >>> import numpy as np, linkern
    >>> ones = np.ones((2, 2))
    >>> decay = np.log([[1.0, 1.0], [0.5, 0.25]])
    >>> linkern.gla(ones, ones, ones, decay, scale=1.0).output[:, 0]
    array([2.  , 2.75])
    """
