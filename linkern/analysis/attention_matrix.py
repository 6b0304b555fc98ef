"""The explicit matrix of weights of an operator: its output for the identity as values.

An output that is linear in the values is ``W value``, whatever the operator does to
find ``W``; so each column of ``W`` is the output for one token's value being one.
"""

import inspect
from collections.abc import Mapping
from typing import Any, cast

from linkern import validate
from linkern.array import broadcast_to, eye, is_array, namespace, reshape
from linkern.operators.definition import Definition
from linkern.operators.register import known_definition
from linkern.typing import Array

__all__ = ["attention_weights"]

# What `oja` erases depends on the values that it wrote.
_NOT_LINEAR = ("oja",)


def attention_weights(op: Any, *inputs: Any, **options: Any) -> Array:
    r"""Return the matrix ``W`` with which an operator weights the values.

    Parameters
    ----------
    op : callable
        An operator, such as `linkern.gla`, one of `linkern.attention`, or any function
        with an argument ``value`` whose output is linear in it.
    *inputs, **options
        What `op` is called with. Of ``value`` only the shape, library and dtype count.
        Random numbers: pass ``rng`` as an integer to get the weights of that very call.

    Returns
    -------
    array (..., T, S)
        ``W``, in the dtype of the output: ``output = W value``. The operator
        `gated_delta_product` has several values a token, ``S = n T``. Those with gates
        on single channels of the values (`hgrn`, `rwkv4`, `gdn2`) have a matrix for
        each channel: ``(..., V, T, S)``.

    Raises
    ------
    TypeError
        If `op` is no such function, or its output is not linear in the values (`oja`).
    ValueError
        If an `initial_state` is given: its tokens would have no column.
    TypeError, ValueError
        As `op`.

    Notes
    -----
    .. math:: o_i = \sum_j W_{ij} v_j

    `op` runs on the identity as values, in its own order of sums: what comes back is
    what it does, rounding included. This takes memory in proportion to ``T S`` and, for
    channels of their own, to ``T S V``: it is for looking at short sequences.

    Source: Ali et al. 2024, "The Hidden Attention of Mamba Models", for reading
    recurrent operators as such a matrix.

    Examples
    --------
    >>> import numpy as np, linkern
    >>> from linkern import attention_weights
    >>> x = np.zeros((3, 2))
    >>> attention_weights(linkern.linear_attention, x, x, x).round(2)
    array([[1.  , 0.  , 0.  ],
           [0.5 , 0.5 , 0.  ],
           [0.33, 0.33, 0.33]])
    """
    called = _called(op, inputs, options)
    if called.get("initial_state") is not None:
        msg = (
            "`initial_state` must be None for `attention_weights`: the weights of the "
            "tokens before are not in it; pass all tokens."
        )
        raise ValueError(msg)
    value = called["value"]
    validate.widened("value", value)
    if value.ndim < 2:
        got = tuple(value.shape)
        msg = f"`value` must have shape (..., length, dim), got {got}."
        raise ValueError(msg)
    if not _by_channel(op):
        length = value.shape[-2]
        identity = broadcast_to(eye(length, like=value), (*value.shape[:-1], length))
        return _output(op, {**called, "value": identity})
    output = _output(op, {**called, "value": _one_token_each(called)})
    return cast(Array, namespace(output).moveaxis(output, (0, -1), (-1, -3)))


def _called(op: Any, inputs: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """Return the arguments of a call by name."""
    name = getattr(op, "__name__", repr(op))
    if not callable(op):
        msg = f"`op` must be a callable with an argument `value`, got {op!r}."
        raise TypeError(msg)
    definition = _wrapped_definition(op)
    if definition is not None and definition.name in _NOT_LINEAR:
        msg = (
            f"`op` must be linear in its values, got {definition.name}: what it erases "
            "depends on them, so there is no matrix of weights."
        )
        raise TypeError(msg)
    signature = inspect.signature(op)
    if "value" not in signature.parameters or "state" in signature.parameters:
        msg = (
            "`op` must take a whole sequence and have an argument `value`, such as "
            f"`linkern.gla`, got {name}{signature}."
        )
        raise TypeError(msg)
    validate.keywords(name, options, signature.parameters)
    return signature.bind(*inputs, **options).arguments


def _wrapped_definition(op: Any) -> Definition | None:
    """Return the record of an operator, compiled or not; None if it is none."""
    # `jax.jit` and `torch.compile` say which function theirs is.
    return known_definition(inspect.unwrap(op))


def _by_channel(op: Any) -> bool:
    """Return True if inputs besides the values have the channels of the values."""
    definition = _wrapped_definition(op)
    axes = {} if definition is None else definition.axes
    return any(a.endswith("v") for name, a in axes.items() if name != "value")


def _one_token_each(called: Mapping[str, Any]) -> Array:
    """Return a batch of values: in the j-th, token j is one in every channel.

    That axis comes before all leading axes that any input has.
    """
    value = called["value"]
    *lead, length, dim = value.shape
    most = max(x.ndim for x in called.values() if is_array(x))
    ones = (1,) * (most - value.ndim + len(lead))
    columns = reshape(eye(length, like=value), (length, *ones, length, 1))
    missing = (1,) * (most - value.ndim)
    return broadcast_to(columns, (length, *missing, *lead, length, dim))


def _output(op: Any, called: Mapping[str, Any]) -> Array:
    result = _call(op, called)
    return cast(Array, getattr(result, "output", result))


def _call(op: Any, called: Mapping[str, Any]) -> Any:
    """Call by position where names are not allowed."""
    bound = inspect.signature(op).bind_partial()
    bound.arguments.update(called)
    return op(*bound.args, **bound.kwargs)
