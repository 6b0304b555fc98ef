r"""A span of tokens as one affine map of the memory, and the composition of spans.

    S_out = M S_in + E

``M`` is the product of the transitions of the tokens, ``E`` what the span leaves in an
empty memory. Maps compose associatively, so chunking, splitting, prefilling, and
dividing a sequence among machines are all the same law.
"""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, cast, overload

from linkern import validate
from linkern.array import broadcast_to, eye, mT, zeros
from linkern.core.recurrence import Terms
from linkern.operators.definition import run
from linkern.operators.forms import FORM_NAMES, Form, form_named
from linkern.operators.register import bound, definition_of
from linkern.state import AttentionResult, State, as_state, only_a_tuple
from linkern.typing import Array, ArrayT, ArrayT_co

__all__ = ["SpanMap", "span_map"]


@only_a_tuple
class SpanMap(NamedTuple, Generic[ArrayT_co]):
    """Affine map of the memory that a span of tokens is.

    Parameters
    ----------
    transition : array (..., D, D)
        ``M``. It acts on the key side of the memory, ``M S``; for operators that erase
        or decay values (`oja`, `hgrn`) on the other, ``S M^T``.
    increment : State
        ``E``: the state after the span, entered with an empty one.
    transpose_state : bool
        Whether `transition` acts on the value side.
    """

    transition: ArrayT_co
    increment: State[ArrayT_co]
    transpose_state: bool = False

    def apply(self, state: State[ArrayT_co] | Array) -> State[ArrayT_co]:
        """Return the state after the span, from the one before it.

        Parameters
        ----------
        state : State
            Before the span, with a normalizer exactly if `increment` has one; a plain
            array is a memory without one.

        Returns
        -------
        State
            After the span.

        Raises
        ------
        ValueError
            If one of the two has a normalizer and the other has none, or shapes do not
            fit.

        Examples
        --------
        >>> import numpy as np, linkern
        >>> x = np.ones((2, 1))
        >>> span = linkern.span_map(linkern.delta_rule, x, x, 3 * x, np.full(2, 0.5))
        >>> span.apply(linkern.State(np.asarray([[7.0]]), None)).memory
        array([[4.]])
        """
        normalizer = self.increment.normalizer is not None
        carried = self._through(as_state("state", state, normalizer=normalizer))
        validate.combinable(self.increment, carried)
        total = None
        if carried.normalizer is not None and self.increment.normalizer is not None:
            total = carried.normalizer + self.increment.normalizer
        after = State(carried.memory + self.increment.memory, total)
        return cast("State[ArrayT_co]", after)

    def combine(self, later: "SpanMap[ArrayT_co]") -> "SpanMap[ArrayT_co]":
        """Return the map of both spans, this one and then a `later` one.

        Parameters
        ----------
        later : SpanMap
            The span that follows.

        Returns
        -------
        SpanMap
            ``(M_2 M_1, M_2 E_1 + E_2)``: associative.

        Raises
        ------
        ValueError
            If the two are maps of different memories.

        Examples
        --------
        >>> import numpy as np, linkern
        >>> x = np.ones((2, 1))
        >>> span = linkern.span_map(linkern.delta_rule, x, x, 3 * x, np.full(2, 0.5))
        >>> span.combine(span).transition
        array([[0.0625]])
        """
        if self.transpose_state != later.transpose_state:
            msg = "`later` must act on the same side of the memory as this map."
            raise ValueError(msg)
        transition = cast("ArrayT_co", later.transition @ self.transition)
        return SpanMap(transition, later.apply(self.increment), self.transpose_state)

    def _through(self, state: State) -> State:
        """Return ``M S``, without what the span adds."""
        if self.transpose_state:
            return State(state.memory @ mT(self.transition), state.normalizer)
        normalizer = state.normalizer
        if normalizer is not None:
            normalizer = (self.transition @ normalizer[..., None])[..., 0]
        return State(self.transition @ state.memory, normalizer)


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
        `log_linear_attention`, `selective_scan`), or an option does not fit.

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
    name = validate.form(rest.pop("form", "auto"), FORM_NAMES)
    form = form_named(name, validate.chunk_size(rest.pop("chunk_size", None), name))
    transitions: list[Array] = []

    def watched(memory: Array, terms: Terms) -> tuple[Array, Array]:
        transitions.append(_transition(form, terms))
        return form(memory, terms)

    # Through the operator itself, for what it fills in; all its passes decay alike.
    increment = run(definition, {**arrays, **rest}, Form(watched, None)).state
    return SpanMap(transitions[-1], increment, definition.transpose_state)


def _transition(form: Form, terms: Terms) -> Array:
    """Return the memory after the span for the identity, with nothing written."""
    size = terms.key.shape[-1]
    lead = tuple(terms.key.shape[:-2])
    identity = broadcast_to(eye(size, like=terms.key), (*lead, size, size))
    nothing = zeros((*terms.value.shape[:-1], size), like=terms.value)
    query = zeros((*terms.key.shape[:-1], size), like=terms.key)
    unread = terms._replace(query=query, value=nothing, transpose_state=False)
    return form(identity, unread)[1]
