"""A kernel of packed sequences, made of one for a sequence; its parts can be replaced.

Each sequence is a call of its own, forwards and backwards, with a state of its own.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from linkern.testing.kernels.assembly.parts import (
    Array,
    Change,
    Inputs,
    Kernel,
    State,
    unchanged,
    wide,
)
from linkern.testing.spec.operators import OPERATORS, Operator

__all__ = ["Span", "Spans", "mapped", "one_state", "packed", "stacked"]

# First token, end, and the sequence whose state it starts from, None to go on.
Span = tuple[int, int, int | None]
Spans = Callable[[list[int]], list[Span]]


def own_sequences(edges: list[int]) -> list[Span]:
    """Return each packed sequence, started from its own state."""
    return [(a, b, n) for n, (a, b) in enumerate(pairwise(edges))]


def one_state(states: State, n: int, edges: list[int], later: State = None) -> State:
    """Return the state of one sequence; None if there are no states."""
    del edges, later
    return None if states is None else mapped(lambda x: x[n : n + 1], states)


def stacked(states: list[State], initial: list[State], edges: list[int]) -> State:
    """Return the final states of all sequences."""
    del initial, edges
    return mapped(lambda *parts: np.concatenate(parts), *states)


def mapped(change: Callable[..., Array], *states: State) -> State:
    """Apply a function to the arrays of states, which are arrays or tuples of them."""
    if isinstance(states[0], tuple):
        return tuple(change(*parts) for parts in zip(*states, strict=True))
    return change(*states)


@dataclass(frozen=True)
class PackedParts:
    """The parts of a kernel of packed sequences; each default is right.

    Parameters
    ----------
    spans, spans_back : callable
        Edges of packed sequences, to the spans that are computed by themselves, in the
        forward and in the backward pass.
    empty : callable
        Makes the output and the gradients, like the values and the inputs.
    initial : callable
        States, the number of a sequence and the edges, to the state of the sequence.
    cotangent : callable
        The same of the cotangents of final states; the gradient of the initial state of
        the next sequence comes last.
    final : callable
        The final and initial states of the sequences, and the edges, to the final
        states that are returned.
    gradients : callable
        Gradients by name and the edges, to the gradients that are returned.
    of_initial : callable
        Applied to the gradient of all initial states.
    """

    spans: Spans = own_sequences
    spans_back: Spans = own_sequences
    empty: Change = np.zeros_like
    initial: Callable[[State, int, list[int]], State] = one_state
    cotangent: Callable[[State, int, list[int], State], State] = one_state
    final: Callable[[list[State], list[State], list[int]], State] = stacked
    gradients: Callable[[Inputs, list[int]], Inputs] = unchanged
    of_initial: Change = unchanged


def packed(kernel: Kernel, op: str = "linear_attention", **parts: Any) -> Kernel:
    """Return a kernel that takes ``cu_seqlens`` too, as its ``vjp`` does.

    Parameters
    ----------
    kernel : callable
        Kernel of one sequence that takes an ``initial_state``, and returns output and
        state.
    op : str
        Its operator.
    **parts
        Those of `PackedParts`.
    """
    chosen, operator = PackedParts(**parts), OPERATORS[op]
    forward = _packing(kernel, operator, chosen, _forward)
    if hasattr(kernel, "vjp"):
        back = _packing(kernel.vjp, operator, chosen, _backward)
        forward.vjp = back  # type: ignore[attr-defined]
    return forward


def _packing(
    function: Kernel, operator: Operator, parts: PackedParts, run: Callable[..., Any]
) -> Kernel:
    """Return a function with one more parameter, run for each sequence."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    offsets = inspect.Parameter("cu_seqlens", keyword, default=None)
    signature = inspect.signature(function)
    signature = signature.replace(parameters=[*signature.parameters.values(), offsets])

    def with_offsets(*positional: Array, **named: Any) -> Any:
        call = signature.bind(*positional, **named).arguments
        edges = call.pop("cu_seqlens", None)
        if edges is None:
            return function(**call)
        return run(function, operator, parts, call, [int(n) for n in edges])

    with_offsets.__signature__ = signature  # type: ignore[attr-defined]
    return with_offsets


def _forward(
    kernel: Kernel,
    operator: Operator,
    parts: PackedParts,
    call: Inputs,
    edges: list[int],
) -> tuple[Array, State]:
    """Return the outputs of packed sequences and their final states."""
    initial = call.pop("initial_state", None)
    output, states, before = parts.empty(call["value"]), [], []
    state: State = None
    for first, last, n in parts.spans(edges):
        if n is not None:
            state = parts.initial(initial, n, edges)
        before.append(state)
        tokens = _tokens(operator, call, first, last)
        output[..., first:last, :], state = kernel(**tokens, initial_state=state)
        states.append(state)
    return output, parts.final(states, before, edges)


def _backward(
    vjp: Kernel,
    operator: Operator,
    parts: PackedParts,
    call: Inputs,
    edges: list[int],
) -> tuple[Any, ...]:
    """Return the gradients of packed sequences, and those of their initial states."""
    initial = call.pop("initial_state", None)
    d_final = call.pop("state_cotangent", None)
    names = [name for name in operator.names if name in call]
    # The gradient of what all sequences share is a sum that is rounded once.
    shared = {n: wide(call[n]) for n in names if operator.input(n).token_axis is None}
    gradients = {name: parts.empty(wide(call[name])) for name in names}
    d_initial: list[State] = []
    for first, last, n in reversed(parts.spans_back(edges)):
        assert n is not None
        later = d_initial[0] if d_initial else None
        states = {
            "initial_state": parts.initial(initial, n, edges),
            "state_cotangent": parts.cotangent(d_final, n, edges, later),
        }
        tokens = _tokens(operator, call | shared, first, last)
        *d_tokens, d_state = vjp(**tokens, **states)
        for name, gradient in zip(names, d_tokens, strict=True):
            axis = operator.input(name).token_axis
            # An input without tokens is that of all sequences.
            entries = ... if axis is None else _at(axis, first, last)
            gradients[name][entries] += gradient
        d_initial.insert(0, d_state)
    gradients = parts.gradients(gradients, edges)
    d_inputs = (gradients[name].astype(call[name].dtype) for name in names)
    return (*d_inputs, parts.of_initial(stacked(d_initial, [], edges)))


def _at(axis: int, first: int, last: int) -> tuple[slice, ...]:
    return (*(slice(None),) * axis, slice(first, last))


def _tokens(operator: Operator, call: Inputs, first: int, last: int) -> Inputs:
    """Return the arguments of one packed sequence."""
    tokens = dict(call)
    per_token = {one.name for one in operator.inputs if one.per_token}
    for name, x in call.items():
        if name == "output_cotangent":
            tokens[name] = x[..., first:last, :]
        elif name in per_token and x is not None:
            axis = operator.input(name).token_axis
            assert axis is not None
            tokens[name] = x[_at(axis, first, last)]
    return tokens
