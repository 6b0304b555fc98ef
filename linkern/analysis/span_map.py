"""The affine map of the memory that a span of tokens is."""

from collections.abc import Callable
from typing import Any, overload

from linkern.operators.register import bound, definition_of
from linkern.operators.spans import SpanMap, span_of
from linkern.state import AttentionResult
from linkern.typing import ArrayT

__all__ = ["SpanMap", "span_map"]


@overload
def span_map(
    op: Callable[..., AttentionResult[Any]],
    query: ArrayT,
    *inputs: Any,
    **options: Any,
) -> SpanMap[ArrayT]: ...


@overload
def span_map(
    op: Callable[..., AttentionResult[Any]], **options: Any
) -> SpanMap[Any]: ...


def span_map(op: Any, *inputs: Any, **options: Any) -> SpanMap[Any]:
    r"""Return the affine map of the memory that a span of tokens is.

    Parameters
    ----------
    op : callable
        An operator of this package, such as `linkern.kda`.
    *inputs, **options
        What `op` is called with; `initial_state` and `cu_seqlens` must be left out.

    Returns
    -------
    SpanMap
        Transition and increment, in the accumulation dtype.

    Raises
    ------
    TypeError
        If `op` is no operator of this package.
    ValueError
        If its state is not ``M S + E`` of the one before (`rwkv4`, `abc`,
        `log_linear_attention`, `selective_scan`, `mamba3`, `mamba3_mimo`), or an
        option does not fit.

    Notes
    -----
    :math:`M = \prod_t (\mathrm{Diag}(e^{g_t}) - b_t a_t^T)`, latest token first. It is
    obtained by running the operator's own recurrence on the identity, with nothing
    written.

    Examples
    --------
    >>> import numpy as np, linkern
    >>> x = np.ones((3, 1))
    >>> span = linkern.span_map(linkern.simple_gla, x, x, x, np.log(np.full(3, 0.5)))
    >>> span.transition, span.increment.memory
    (array([[0.125]]), array([[1.75]]))
    """
    definition = definition_of(op)
    if not definition.affine:
        msg = (
            f"the state after a span is not `M S + E` of the state S before it for "
            f"{definition.name}; carry the state itself."
        )
        raise ValueError(msg)
    arrays, rest = bound(op, inputs, options)
    for name in ("initial_state", "cu_seqlens"):
        if rest.pop(name, None) is not None:
            msg = f"`{name}` must be left out: a span map is a function of the state."
            raise ValueError(msg)
    if not rest.get("causal", True):
        msg = "`causal` must be True: a span map takes one token after the other."
        raise ValueError(msg)
    return span_of(definition, {**arrays, **rest}, dense=True)
