"""Decoding: one token of an operator, in constant time and constant memory."""

from typing import Any

from linkern.array import is_array
from linkern.operators.binding import bound, definition_of
from linkern.state import AttentionResult, State

__all__ = ["step"]


def step(op: Any, state: State | None, *inputs: Any, **options: Any) -> AttentionResult:
    r"""Run one token of an operator.

    Parameters
    ----------
    op : callable
        An operator of this package, such as `linkern.kda`.
    state : State or None
        What the tokens so far left behind; None before the first token.
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
    The recurrence itself, and bitwise equal to the recurrent form. For the operator of
    the paper see `linear_attention_step`.

    Examples
    --------
    >>> import numpy as np, linkern
    >>> x = np.ones(1)
    >>> first = linkern.step(linkern.delta_rule, None, x, x, 3 * x)
    >>> linkern.step(linkern.delta_rule, first.state, x, x, 5 * x).output
    array([5.])
    """
    definition = definition_of(op)
    arrays, rest = bound(op, inputs, options)
    for name, x in arrays.items():
        letters = definition.axes[name]
        if x is None or not is_array(x) or letters[:1] != "t":
            continue
        arrays[name] = x[..., None] if letters == "t" else x[..., None, :]
    rest = {"form": "recurrent", **rest}
    result = op(**arrays, initial_state=state, **rest)
    return AttentionResult(result.output[..., 0, :], result.state)
