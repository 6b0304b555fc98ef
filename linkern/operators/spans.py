r"""A span of tokens as one affine map of the memory, and the composition of spans.

    S_out = M S_in + E

``M`` is the product of the transitions of the tokens, ``E`` what the span leaves in an
empty memory. Maps compose associatively, so chunking, splitting, prefilling, and
dividing a sequence among machines are all the same law.
"""

from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, cast

from linkern import validate
from linkern.array import broadcast_to, concat, eye, mT, ones, zeros
from linkern.core.chunkwise import write
from linkern.core.recurrence import Terms
from linkern.operators.definition import Definition, run
from linkern.operators.forms import FORM_NAMES, Form, form_named
from linkern.state import State, as_state, only_a_tuple
from linkern.typing import Array, ArrayT_co

__all__ = ["SpanMap", "span_of"]


@only_a_tuple
class SpanMap(NamedTuple, Generic[ArrayT_co]):
    """Affine map of the memory that a span of tokens is.

    Parameters
    ----------
    transition : array (..., D, D)
        ``M``. It acts on the key side of the memory, ``M S``; for operators that erase
        or decay values (`oja`, `hgrn`) on the other, ``S M^T``. One column stands for
        a diagonal matrix.
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
            Before the span, of the dtype of `increment`, and with a normalizer exactly
            if that has one; a plain array is a memory without one.

        Returns
        -------
        State
            After the span.

        Raises
        ------
        TypeError
            If `state` is no state, or its arrays are of another library or dtype.
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
        before = as_state("state", state, normalizer=normalizer)
        validate.state_before("state", before, "increment", self.increment)
        return self._after(before)

    def _after(self, state: State[ArrayT_co]) -> State[ArrayT_co]:
        """Return the state after the span, from one that fits."""
        carried, total = self._through(state), None
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
        TypeError
            If `later` is no `SpanMap`, or its arrays are of another library or dtype.
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
        _is_span("later", later)
        if self.transpose_state != later.transpose_state:
            msg = "`later` must act on the same side of the memory as this map."
            raise ValueError(msg)
        mine, other = self.increment, later.increment
        validate.state_before("self.increment", mine, "later.increment", other)
        transition = cast("ArrayT_co", _product(later.transition, self.transition))
        return SpanMap(transition, later._after(mine), self.transpose_state)

    def _through(self, state: State) -> State:
        """Return ``M S``, without what the span adds."""
        if self.transpose_state:
            memory = mT(_product(self.transition, mT(state.memory)))
            return State(memory, state.normalizer)
        normalizer = state.normalizer
        if normalizer is not None:
            normalizer = _product(self.transition, normalizer[..., None])[..., 0]
        return State(_product(self.transition, state.memory), normalizer)


def _is_span(name: str, span: Any) -> None:
    """Check that an argument is the map of a span."""
    if not isinstance(span, SpanMap):
        msg = f"`{name}` must be a `SpanMap`, got {type(span).__name__}."
        raise TypeError(msg)


def _product(transition: Array, x: Array) -> Array:
    """Return ``M x``, where one column stands for a diagonal ``M``."""
    return transition * x if transition.shape[-1] == 1 else transition @ x


def span_of(
    definition: Definition, arguments: Mapping[str, Any], *, dense: bool = False
) -> SpanMap[Any]:
    """Return the map of the memory that the tokens of a call are; it has no state.

    Parameters
    ----------
    definition : Definition
        The operator; its spans are affine.
    arguments : mapping
        Its inputs and options by name, without `initial_state` and `cu_seqlens`. What
        `query` holds does not matter.
    dense : bool
        Whether a diagonal transition is a matrix as well.
    """
    options = dict(arguments)
    name = validate.form(options.pop("form", "auto"), FORM_NAMES)
    form = form_named(name, validate.chunk_size(options.pop("chunk_size", None), name))
    transitions: list[Array] = []

    def watched(memory: Array, terms: Terms) -> tuple[Array, Array]:
        transition, memory = _without_reading(form, memory, terms, dense=dense)
        transitions.append(transition)
        dim = memory.shape[-2 if terms.transpose_state else -1]
        unread = ones((1,) * terms.value.ndim, like=terms.value)
        return broadcast_to(unread, (*terms.value.shape[:-1], dim)), memory

    # Through the operator itself, for what it fills in; all its passes decay alike.
    increment = run(definition, options, Form(watched, None)).state
    return SpanMap(transitions[-1], increment, definition.transpose_state)


def _without_reading(
    form: Form, memory: Array, terms: Terms, *, dense: bool
) -> tuple[Array, Array]:
    """Return the transition of a span, and the memory after it.

    The transition is the memory after the span for the identity, with nothing written;
    the identity takes more columns of the memory. Without an erase, one column of ones
    has the diagonal.
    """
    *lead, size, dim = memory.shape
    if terms.erase is not None or dense:
        identity = eye(size, like=memory)
    elif terms.log_decay is None:
        return ones((1, 1), like=memory), write(memory, terms.key, terms.value)
    else:
        identity = ones((size, 1), like=memory)
    columns = identity.shape[-1]
    both = concat([memory, broadcast_to(identity, (*lead, *identity.shape))], axis=-1)
    nothing = zeros((*terms.value.shape[:-1], columns), like=terms.value)
    value = concat([terms.value, nothing], axis=-1)
    unread = terms._replace(
        query=terms.key, value=value, early_read=False, transpose_state=False
    )
    _, both = form(both, unread)
    return both[..., dim:], both[..., :dim]
