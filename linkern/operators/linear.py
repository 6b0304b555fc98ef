"""Linear attention with a feature map: the operator of the paper, and its step."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from linkern import validate
from linkern.array import (
    astype,
    broadcast_to,
    of_same_heads,
    on_cupy,
    on_numpy,
    ones,
)
from linkern.array import concat as _concat
from linkern.autodiff.tape import raw
from linkern.autodiff.vjp import gradients_of
from linkern.core.recurrence import Terms, token
from linkern.feature_maps import elu_plus_one, identity
from linkern.kernels import cuda as cuda_backend
from linkern.kernels import numpy as numpy_backend
from linkern.operators.forms import FORM_NAMES, Form, form_named
from linkern.operators.varlen import run_packed
from linkern.state import (
    AttentionResult,
    State,
    mapped,
    with_normalizer_column,
    without_normalizer_column,
)
from linkern.typing import Array, FeatureMapFunction

__all__ = ["linear_attention", "linear_attention_step"]


def linear_attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    causal: bool = True,
    feature_map: FeatureMapFunction = elu_plus_one,
    normalize: bool = True,
    scale: float | None = None,
    initial_state: State | None = None,
    cu_seqlens: Any = None,
    form: str = "auto",
    chunk_size: int | None = None,
) -> AttentionResult:
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
    initial_state : State, optional
        State of the tokens before these; its dtype is the accumulation dtype. Default:
        no tokens. ``K`` in its shape counts features.
    cu_seqlens : sequence or array of int, optional
        Offsets of packed sequences along the tokens: ``N + 1`` numbers that begin with
        0 and do not decrease; `causal` only. States then have the sequences as their
        first axis; rows behind the last offset give zeros.
    form : {"auto", "recurrent", "chunkwise", "parallel"}
        Order of the sums. "auto" is "chunkwise", and CUDA kernels for causal calls on
        arrays of CuPy. All forms are differentiable and compute the same thing.
    chunk_size : int, optional
        Tokens per chunk of the chunkwise form. Default 64. Kernels have their own.

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
    causal = validate.flag("causal", causal)
    normalize = validate.flag("normalize", normalize)
    scale = validate.scale(scale)
    form = validate.form(form, FORM_NAMES)
    order = form_named(form, validate.chunk_size(chunk_size, form))
    validate.a_feature_map(feature_map)
    # Blocks are widened and mapped when it is their turn, if each entry is mapped
    # alone. Gradients of what several heads share are sums: these are widened here.
    engine = _engine(form, order, query, key, value, causal=causal)
    by_block = engine is not None and engine.acts_on_entries(feature_map)
    alone = raw(query) is query or of_same_heads(query, key, value)
    wide = not (by_block and alone)
    q, k, v = validate.qkv(query, key, value, causal=causal, wide=wide)
    if not by_block:
        q = validate.features("query", q, feature_map)
        k = validate.features("key", k, feature_map)
        feature_map = identity
    attend = _attend
    if engine is not None:
        by_engine = partial(engine.attend, feature_map=feature_map)
        attend = partial(_attend_natively, by_engine, feature_map)

    def on_span(tokens: slice, state: State | None) -> AttentionResult:
        rows = (x[..., tokens, :] for x in (q, k, v))
        result = attend(
            order, state, *rows, causal=causal, normalize=normalize, scale=scale
        )
        return AttentionResult(astype(result.output, query.dtype), result.state)

    if cu_seqlens is not None:
        if not causal:
            msg = "`cu_seqlens` needs `causal=True`; call once for each sequence."
            raise ValueError(msg)
        return run_packed(cu_seqlens, q.shape[-2], initial_state, on_span)
    return on_span(slice(None), initial_state)


linear_attention.vjp = gradients_of(linear_attention)  # type: ignore[attr-defined]


class _Engine(NamedTuple):
    """Who computes with the arrays of one library, without array code."""

    acts_on_entries: Callable[[Any], bool]
    attend: Callable[..., tuple[Array, Array, Array | None]]


def _engine(form: str, order: Form, *rows: Array, causal: bool) -> _Engine | None:
    if form == "auto" and causal and on_cupy(*rows):
        return _Engine(cuda_backend.acts_on_entries, cuda_backend.attend)
    if form in ("auto", "chunkwise") and on_numpy(*rows):
        attend = partial(numpy_backend.attend, size=order.size, causal=causal)
        return _Engine(numpy_backend.acts_on_entries, attend)
    return None


def _attend(
    form: Form,
    state: State | None,
    query: Array,
    key: Array,
    value: Array,
    *,
    causal: bool,
    normalize: bool,
    scale: float | None,
) -> AttentionResult:
    """Run the operator on features of one sequence."""
    memory = _start(state, key, value, normalize=normalize)
    columns = _value_columns(value, normalize=normalize)
    if causal:
        read_out, memory = form(memory, Terms(query, key, columns))
    else:
        read_out, memory = form.noncausal(memory, query, key, columns)
    return AttentionResult(
        _finish(read_out, scale, normalize=normalize),
        without_normalizer_column(memory, normalize=normalize),
    )


def _attend_natively(
    attend: Callable[..., tuple[Array, Array, Array | None]],
    feature_map: Any,
    form: Form,
    state: State | None,
    query: Array,
    key: Array,
    value: Array,
    *,
    causal: bool,
    normalize: bool,
    scale: float | None,
) -> AttentionResult:
    """Run the operator on one sequence, features made on the way."""
    start = _initial(state, key, value, normalize=normalize)
    own = tuple(start.memory.shape[:-2])
    batch = validate.leading("all inputs", query.shape[:-2], own)
    if 0 in batch:  # there may be a state where there is no query
        q, k, v = (validate.widened("rows", x) for x in (query, key, value))
        options: Any = {"causal": causal, "scale": scale, "normalize": normalize}
        return _attend(form, state, feature_map(q), feature_map(k), v, **options)
    rows = (broadcast_to(x, (*batch, *x.shape[-2:])) for x in (query, key, value))
    before = mapped(lambda x: broadcast_to(x, (*batch, *x.shape[len(own) :])), start)
    output, memory, normalizer = attend(*rows, None, *before, scale=scale)
    after = State(memory, normalizer)
    if batch != own:
        # Queries alone have further heads, and the state is the same for all of these.
        shared = [slice(None) if n > 1 else slice(0, 1) for n in own]
        after = mapped(lambda x: x[(*[0] * (len(batch) - len(own)), *shared)], after)
    return AttentionResult(output, after)


def linear_attention_step(
    state: State | None,
    query: Array,
    key: Array,
    value: Array,
    *,
    feature_map: FeatureMapFunction = elu_plus_one,
    normalize: bool = True,
    scale: float | None = None,
) -> AttentionResult:
    r"""One token of causal linear attention: constant time and constant memory.

    Parameters
    ----------
    state : State or None
        What the tokens so far left behind; None before the first token.
    query, key : array (..., K)
        Query and key of this token.
    value : array (..., V)
        Value of this token.
    feature_map, normalize, scale
        As in `linear_attention`.

    Returns
    -------
    AttentionResult
        ``output (..., V)`` in the dtype of `query` and the next ``state``.

    Raises
    ------
    TypeError, ValueError
        As `linear_attention`.

    Notes
    -----
    Equations 16 to 20 of Katharopoulos et al. 2020: write :math:`S_i = S_{i-1} +
    \phi(k_i) v_i^T`, :math:`z_i = z_{i-1} + \phi(k_i)`, then read :math:`o_i =
    \phi(q_i)^T S_i / \phi(q_i)^T z_i`. Bitwise equal to the recurrent form.

    Examples
    --------
    >>> import numpy as np, linkern
    >>> x = np.zeros(2)
    >>> first = linkern.linear_attention_step(None, x, x, np.asarray([3.0]))
    >>> second = linkern.linear_attention_step(first.state, x, x, np.asarray([6.0]))
    >>> second.output
    array([4.5])
    """
    normalize = validate.flag("normalize", normalize)
    scale = validate.scale(scale)
    q, k, v = validate.qkv(query, key, value, causal=True, rank=1)
    q = validate.features("query", q, feature_map)[..., None, :]
    k = validate.features("key", k, feature_map)[..., None, :]
    v = v[..., None, :]
    memory = _start(state, k, v, normalize=normalize)

    terms = Terms(q, k, _value_columns(v, normalize=normalize))
    read_out, memory = token(memory, terms)
    output = _finish(read_out, scale, normalize=normalize)[..., 0, :]
    return AttentionResult(
        astype(output, query.dtype),
        without_normalizer_column(memory, normalize=normalize),
    )


def _initial(
    state: State | None, key: Array, value: Array, *, normalize: bool
) -> State:
    """Return the state that the first token meets."""
    key = validate.widened("key", key[..., :0, :])
    if state is None:
        batch = validate.leading("key and value", key.shape[:-2], value.shape[:-2])
        state = State.zeros(
            key.shape[-1],
            value.shape[-1],
            like=value,
            batch_shape=batch,
            normalize=normalize,
        )
    else:
        validate.initial_state(state, key, value, normalize=normalize)
    return State(state.memory, state.normalizer)


def _start(state: State | None, key: Array, value: Array, *, normalize: bool) -> Array:
    """Return the memory that the first token meets, with all its columns."""
    return with_normalizer_column(_initial(state, key, value, normalize=normalize))


def _value_columns(value: Array, *, normalize: bool) -> Array:
    """Append a column of ones: its attention is the sum of the weights of a row."""
    if not normalize:
        return value
    return _concat([value, ones((*value.shape[:-1], 1), like=value)], axis=-1)


def _finish(read_out: Array, scale: float | None, *, normalize: bool) -> Array:
    """Divide by the last column, or scale."""
    if normalize:
        return read_out[..., :-1] / read_out[..., -1:]
    return read_out if scale is None else read_out * scale
