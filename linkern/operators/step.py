"""Decoding: one token of an operator, in constant time and constant memory."""

from collections.abc import Callable
from typing import Any, overload

from linkern import validate
from linkern.array import is_array
from linkern.feature_maps import elu_plus_one
from linkern.operators.definition import Definition, Inputs, run
from linkern.operators.forms import FORM_NAMES, ONE_TOKEN, Form
from linkern.operators.linear import linear_attention
from linkern.operators.plans import known_plan, remember, signature_of
from linkern.operators.register import definition_of
from linkern.state import AttentionResult, State
from linkern.typing import ArrayT, FeatureMapFunction

__all__ = ["linear_attention_step", "step"]


@overload
def step(
    op: Callable[..., AttentionResult[Any]],
    state: State[ArrayT] | ArrayT | None,
    query: ArrayT,
    *inputs: Any,
    **options: Any,
) -> AttentionResult[ArrayT]: ...


@overload
def step(
    op: Callable[..., AttentionResult[Any]],
    state: Any,
    **options: Any,
) -> AttentionResult[Any]: ...


def step(op: Any, state: Any, *inputs: Any, **options: Any) -> AttentionResult[Any]:
    r"""Run one token of an operator.

    Parameters
    ----------
    op : callable
        An operator of this package, such as `linkern.kda`.
    state : State, array or None
        What the tokens so far left behind; None before the first token. An array is a
        state without a normalizer.
    *inputs, **options
        What `op` is called with, each input without its axis of tokens: query ``(...,
        K)``, value ``(..., V)``, one number for each token ``(...)``. The ``n`` keys
        of a token of `gated_delta_product` keep their axis, ``(..., n, K)``.

    Returns
    -------
    AttentionResult
        ``output (..., V)`` and the next ``state``.

    Raises
    ------
    TypeError
        If `op` is no operator of this package.
    TypeError, ValueError
        As `op`.

    Notes
    -----
    The recurrence itself, and bitwise equal to the recurrent form; on JAX, which
    compiles the loop of that form and rounds some products and sums once, equal but for
    rounding.

    Examples
    --------
    >>> import numpy as np, linkern
    >>> x = np.ones(1)
    >>> first = linkern.step(linkern.delta_rule, None, x, x, 3 * x)
    >>> linkern.step(linkern.delta_rule, first.state, x, x, 5 * x).output
    array([5.])
    """
    signature = signature_of(op, state, inputs, options)
    plan = known_plan(signature)
    if plan is not None:
        return plan(state, inputs, options)
    definition = definition_of(op)
    call = op.arguments(*inputs, **options)
    if call.get("initial_state") is not None:
        msg = "`initial_state` must be left out of a step: pass it after `op`."
        raise ValueError(msg)
    call["initial_state"] = state
    form_name = validate.form(call.get("form", "auto"), FORM_NAMES)
    validate.chunk_size(call.get("chunk_size"), form_name)
    token = dict(call)
    if "feature_map" in call:  # features come before the axis of tokens
        form: Form | None = ONE_TOKEN
    else:
        form = ONE_TOKEN if form_name == "auto" else None
        for name, letters in definition.axes.items():
            x = call.get(name)
            if x is not None and letters[:1] == "t" and is_array(x):
                call[name] = x[..., None] if letters == "t" else x[..., None, :]
    result = _one_token(definition, call, form)
    if form is not None:
        remember(signature, definition, {**call, "form": form}, token)
    return result


def _one_token(
    definition: Definition, call: Inputs, form: Form | None
) -> AttentionResult[Any]:
    """Run an operator on inputs of one token, and drop the axis of tokens."""
    output, after = run(definition, call, form)
    return AttentionResult(output[..., 0, :], after)


def linear_attention_step(
    state: State[ArrayT] | ArrayT | None,
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    *,
    feature_map: FeatureMapFunction = elu_plus_one,
    normalize: bool = True,
    scale: float | None = None,
) -> AttentionResult[ArrayT]:
    r"""One token of causal linear attention: constant time and constant memory.

    Parameters
    ----------
    state : State, array or None
        What the tokens so far left behind; None before the first token. If not
        `normalize`, an array is its memory.
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
    options = {"feature_map": feature_map, "normalize": normalize, "scale": scale}
    return step(linear_attention, state, query, key, value, **options)
