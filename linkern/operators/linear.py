"""Linear attention with a feature map: the operator of the paper."""

from typing import Any, Unpack

from linkern import validate
from linkern.array import broadcast_to, concat, of_same_heads, ones
from linkern.autodiff.tape import raw
from linkern.core.recurrence import Terms
from linkern.feature_maps import elu_plus_one, identity
from linkern.operators.definition import QKV, Definition, Inputs, Prepared
from linkern.operators.forms import ONE_TOKEN, Form
from linkern.operators.register import Options, operator
from linkern.state import (
    AttentionResult,
    State,
    mapped,
    with_normalizer_column,
    without_normalizer_column,
)
from linkern.typing import Array, ArrayT, FeatureMapFunction

__all__ = ["linear_attention", "weighted_sums"]


def weighted_sums(
    form: Form,
    state: State,
    query: Array,
    key: Array,
    value: Array,
    *,
    causal: bool = True,
    scale: float | None = None,
    log_decay: Array | None = None,
) -> tuple[Array, State]:
    """Return the output of features, and the next state.

    Rows are divided by their weights if the state has a normalizer, which is the memory
    of one more value column, of ones.
    """
    normalize = state.normalizer is not None
    memory = with_normalizer_column(state)
    if normalize:
        value = concat([value, ones((*value.shape[:-1], 1), like=value)], axis=-1)
    if causal:
        output, memory = form(memory, Terms(query, key, value, log_decay))
    else:
        output, memory = form.noncausal(memory, query, key, value)
    if normalize:
        output = output[..., :-1] / output[..., -1:]
    elif scale is not None:
        output = output * scale
    return output, without_normalizer_column(memory, normalize=normalize)


def _attend(
    form: Form,
    state: State,
    *,
    query: Array,
    key: Array,
    value: Array,
    causal: bool,
    feature_map: Any,
    scale: float | None,
) -> tuple[Array, State]:
    """Run the operator on one sequence, in one pass where a back end has one."""
    backend = form.fused(query, causal=causal)
    if backend is None:  # `_prepare` returned features
        return weighted_sums(form, state, query, key, value, causal=causal, scale=scale)
    lead = tuple(state.memory.shape[:-2])
    batch = validate.leading("all inputs", query.shape[:-2], lead)
    if 0 in batch:  # there may be a state where there is no query
        query, key = (feature_map(validate.widened("rows", x)) for x in (query, key))
        value = validate.widened("rows", value)
        return weighted_sums(form, state, query, key, value, causal=causal, scale=scale)
    rows = (broadcast_to(x, (*batch, *x.shape[-2:])) for x in (query, key, value))
    before = mapped(lambda x: broadcast_to(x, (*batch, *x.shape[len(lead) :])), state)
    options: Any = {"size": form.chunk_size, "causal": causal, "scale": scale}
    output, memory, normalizer = backend.attend(
        *rows, None, *before, feature_map=feature_map, **options
    )
    state = State(memory, normalizer)
    if batch != lead:
        # Queries alone have further heads, and the state is the same for all of these.
        shared = [slice(None) if n > 1 else slice(0, 1) for n in lead]
        state = mapped(lambda x: x[(*[0] * (len(batch) - len(lead)), *shared)], state)
    return output, state


def _prepare(
    definition: Definition,
    inputs: Inputs,
    options: Inputs,
    form: Form,
    scale: float | None,
) -> Prepared:
    """Map queries and keys to features, unless a back end does so block by block.

    Leading axes broadcast; the state has those of keys and values. A single token comes
    without an axis of tokens: a feature map that depends on positions refuses that.
    """
    rank = 1 if form is ONE_TOKEN else 2
    causal = validate.flag("causal", options["causal"])
    normalize = validate.flag("normalize", options["normalize"])
    feature_map = options["feature_map"]
    validate.a_feature_map(feature_map)
    q, k, v = validate.qkv(*inputs.values(), causal=causal, rank=rank, wide=False)
    backend = form.fused(q, causal=causal)
    by_block = backend is not None and backend.applies(feature_map)
    # Gradients of what several heads share are sums: these must be wide.
    if not by_block or (raw(q) is not q and not of_same_heads(q, k, v)):
        q, k, v = (validate.widened(name, x) for name, x in inputs.items())
    if not by_block and feature_map is not identity:
        q = validate.features("query", q, feature_map)
        k = validate.features("key", k, feature_map)
        feature_map = identity
    if rank == 1:
        q, k, v = (x[..., None, :] for x in (q, k, v))
    return Prepared(
        definition,
        {"query": q, "key": k, "value": v},
        form,
        {"t": q.shape[-2], "k": k.shape[-1], "v": v.shape[-1]},
        validate.leading("key and value", k.shape[:-2], v.shape[:-2]),
        inputs["query"].dtype,
        validate.wide_like("key", k),
        {"causal": causal, "feature_map": feature_map, "scale": scale},
        normalize,
    )


LINEAR_ATTENTION = Definition(
    "linear_attention",
    QKV,
    _attend,
    normalizer=lambda n: (n["k"],),
    inverse_root_scale=False,
    prepare=_prepare,
)


@operator(LINEAR_ATTENTION)
def linear_attention(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    *,
    causal: bool = True,
    feature_map: FeatureMapFunction = elu_plus_one,
    normalize: bool = True,
    **options: Unpack[Options[ArrayT]],
) -> AttentionResult[ArrayT]:
    r"""Linear attention with a feature map, row normalisation and explicit state.

    Parameters
    ----------
    query : array (..., T, K)
        Queries; float16, bfloat16, float32 or float64.
    key : array (..., S, K)
        Keys; same library, device and dtype as `query`. ``S == T`` if `causal`.
    value : array (..., S, V)
        Values; same library, device and dtype as `query`. Leading axes (batch, heads)
        of the three broadcast against each other.
    causal : bool
        True: query i sees keys 0..i. False: every query sees every key.
    feature_map : callable
        Applied to `query` and `key` in the accumulation dtype; ``(..., K)`` to
        ``(..., F)``. See `linkern.feature_maps`.
    normalize : bool
        Divide each row by the sum of its weights.
    scale : float, optional
        Factor on the scores, dimensionless. Default 1. It cancels when `normalize`.
    initial_state : State or array, optional
        State of the tokens before these; its dtype is the accumulation dtype. If not
        `normalize`, an array is its memory. Default: no tokens. ``K`` in its shape
        counts features.
    cu_seqlens : sequence or array of int, optional
        Offsets of packed sequences along the tokens: ``N + 1`` numbers that begin with
        0 and do not decrease, in a list or in an array of any library and device;
        `causal` only. States then have the sequences as their first axis; rows behind
        the last offset give zeros.
    form : {"auto", "recurrent", "chunkwise", "parallel"}
        Order of the sums. "auto" is "chunkwise", and CUDA kernels for causal calls on
        arrays of CuPy. On tensors of PyTorch on a CPU "auto" and "recurrent" run
        NumPy's kernels, bitwise as on NumPy arrays, and "chunkwise" and "parallel"
        operations of PyTorch, which it can trace. All forms are differentiable and
        compute the same thing.
    chunk_size : int, optional
        Tokens per chunk of the chunkwise form. Default 64, on NumPy 32. Kernels have
        their own.

    Returns
    -------
    AttentionResult
        ``output (..., T, V)`` in the dtype of `query`, and ``state`` after the last key
        in the accumulation dtype: float32, or float64 for float64 inputs. Neither
        shares memory with the inputs.

    Raises
    ------
    TypeError
        If an input is not a real floating-point array, or the inputs mix libraries or
        dtypes, or an option has the wrong type.
    ValueError
        If shapes or devices do not fit, or an option is out of range.

    See Also
    --------
    linear_attention_step : the same operator, one token at a time.

    Notes
    -----
    With feature map :math:`\phi`,

    .. math::

        S_i = S_{i-1} + \phi(k_i) v_i^T, \qquad z_i = z_{i-1} + \phi(k_i), \qquad
        o_i = \frac{\phi(q_i)^T S_i}{\phi(q_i)^T z_i},

    and :math:`o_i = scale \cdot \phi(q_i)^T S_i` without normalisation. The quotient is
    exact: no epsilon is added, so a query whose weights are all zero gives NaN.

    Source: Katharopoulos et al. 2020, "Transformers are RNNs: Fast Autoregressive
    Transformers with Linear Attention", equations 5 to 12 and 16 to 20.

    Examples
    --------
    >>> import numpy as np, linkern
    >>> query = key = np.zeros((3, 2))
    >>> value = np.asarray([[3.0], [6.0], [9.0]])
    >>> linkern.linear_attention(query, key, value).output
    array([[3. ],
           [4.5],
           [6. ]])
    """
