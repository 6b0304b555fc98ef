"""Kernels called span by span: the state of one span starts the next."""

import inspect
from functools import wraps
from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import Array, Kernel
from linkern.testing.spec.operators import OPERATORS

__all__ = ["in_spans"]


def in_spans(op: str, kernel: Kernel, length: int) -> Kernel:
    """Return a kernel of an operator that calls another on spans of so many tokens.

    Parameters
    ----------
    op : str
        The operator; each of its queries follows one key.
    kernel : callable
        Called with the inputs by name, ``initial_state``, and ``position`` if it has
        that parameter; it returns output and state.
    length : int
        Tokens of each span.
    """
    operator, signature = OPERATORS[op], inspect.signature(kernel)

    @wraps(kernel)
    def spanned(*positional: Array, **named: Any) -> tuple[Array, Any]:
        call = signature.bind(*positional, **named).arguments
        tokens = call["value"].shape[-2]
        state, position = call.pop("initial_state", None), call.pop("position", 0)
        outputs = []
        for first in range(0, max(tokens, 1), length):
            span = {
                name: _cut(operator, name, x, first, first + length)
                for name, x in call.items()
            }
            if "position" in signature.parameters:
                span["position"] = position + first
            output, state = kernel(**span, initial_state=state)
            outputs.append(output)
        return np.concatenate(outputs, axis=-2), state

    return spanned


def _cut(operator: Any, name: str, x: Any, first: int, last: int) -> Any:
    """Return the tokens of a span of one argument, all of it if it has none."""
    if x is None or name not in operator.names:
        return x
    axis = operator.input(name).token_axis
    return x if axis is None else x[(slice(None),) * axis + (slice(first, last),)]
