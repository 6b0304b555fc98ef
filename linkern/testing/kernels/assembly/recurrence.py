"""A chunkwise kernel with decays and erases, made of parts that can be replaced.

Decays between two tokens are sums over the span between them, and what a chunk erases
comes out of one triangular system.
"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from linkern.testing.kernels.assembly.parts import (
    CHUNK,
    Array,
    Change,
    Counts,
    Inputs,
    Kernel,
    all_tokens,
    unchanged,
)
from linkern.testing.kernels.assembly.recurrence_backward import (
    RecurrenceBackward,
    backward,
)
from linkern.testing.kernels.assembly.terms import (
    Terms,
    input_gradients,
    terms_of,
)
from linkern.testing.spec.operators import OPERATORS, Operator

__all__ = [
    "RecurrenceBackward",
    "RecurrenceParts",
    "decays_between",
    "forward_substitution",
    "recurrence",
]


def decays_between(g: Array) -> tuple[Array, Array]:
    """Return the decays from each token of a chunk to each later one, and from before.

    Each sum is formed by itself: a difference of two sums would be lost after -inf.
    """
    length = g.shape[-2]
    between = np.full((*g.shape[:-2], length, length, g.shape[-1]), -np.inf, g.dtype)
    since = np.zeros_like(g)
    for t in range(length):
        between[..., t, t, :] = 0
        since[..., t, :] = g[..., t, :]
        if t:
            now = g[..., t : t + 1, :]
            between[..., t, :t, :] = between[..., t - 1, :t, :] + now
            since[..., t, :] += since[..., t - 1, :]
    return np.exp(between), np.exp(since)


def forward_substitution(system: Array, known: Array) -> Array:
    """Solve ``x = system x + known`` for a strictly lower triangular system."""
    solution = known.copy()
    for t in range(1, known.shape[-2]):
        row = system[..., t : t + 1, :t]
        solution[..., t : t + 1, :] += row @ solution[..., :t, :]
    return solution


@dataclass(frozen=True)
class RecurrenceParts:
    """The parts of a chunkwise kernel of a recurrence; each default is right.

    Parameters
    ----------
    chunk : int
        Steps per chunk.
    inputs : callable
        Applied to the inputs, by name.
    scale : callable
        Scale and key dimension, to the scale that is used.
    terms : callable
        Applied to the terms.
    decays : callable
        Log-decays of a chunk to the decays between its tokens, and since its start.
    since : callable
        Applied to the latter where the state of earlier chunks is read.
    solve : callable
        Strictly lower triangular system and known side, to what is erased.
    counted : callable
        How often each token of a chunk counts in the state after it.
    carried : callable
        Applied to the state between chunks.
    received, returned : callable
        Applied to the initial and to the final state.
    default_scale : float or None
        A fixed scale, in place of the parameter.
    backward : RecurrenceBackward or None
        The parts of the gradients, for the operators that `input_gradients` knows;
        None if the kernel has none.
    """

    chunk: int = CHUNK
    inputs: Callable[[Inputs], Inputs] = unchanged
    scale: Callable[[float, int], float] = unchanged
    terms: Callable[[Terms], Terms] = unchanged
    decays: Callable[[Array], tuple[Array, Array]] = decays_between
    since: Change = unchanged
    solve: Callable[[Array, Array], Array] = forward_substitution
    counted: Counts = all_tokens
    carried: Change = unchanged
    received: Change = unchanged
    returned: Change = unchanged
    default_scale: float | None = None
    backward: RecurrenceBackward | None = None


def _scores(left: Array, decays: Array, right: Array) -> Array:
    return (left[..., :, None, :] * decays * right[..., None, :, :]).sum(-1)


def _one_row_later(decays: Array, first: float) -> Array:
    shifted = np.full_like(decays, first)
    shifted[..., 1:, :] = decays[..., :-1, :]
    return shifted


def _one_chunk(
    parts: RecurrenceParts, terms: Terms, span: slice, state: Array
) -> tuple[Array, Array]:
    """Return what the tokens of a chunk read, and the state after it."""
    q, k, v = (x[..., span, :] for x in (terms.query, terms.key, terms.value))
    decays, since = parts.decays(terms.log_decay[..., span, :])
    earlier = np.zeros_like(decays)
    earlier[..., 1:, :, :] = decays[..., :-1, :, :]
    before = earlier, _one_row_later(since, 1)
    within, entering = before if terms.early_read else (decays, since)
    output = _scores(q, within, k) @ v + (q * parts.since(entering)) @ state
    counts = parts.counted(span.start, k.shape[-2], parts.chunk).astype(k.dtype)
    last = decays[..., -1, :, :] * counts[:, None]
    after = np.swapaxes(since[..., -1:, :], -1, -2) * state
    after = after + np.swapaxes(last * k, -1, -2) @ v
    if terms.erase is not None:
        a, b = terms.erase[..., span, :], terms.rate[..., span, :]
        lower = np.tri(k.shape[-2], k=-1, dtype=bool)[..., None]
        strictly = np.where(lower, decays, 0)
        met = before if terms.early_erase else (strictly, since)
        known = _scores(a, met[0], k) @ v + (a * met[1]) @ state
        erased = parts.solve(_scores(a, met[0], b), known)
        output = output + _scores(q, within, b) @ erased
        after = after + np.swapaxes(last * b, -1, -2) @ erased
    if terms.bonus is not None:
        output = output + (q * terms.bonus * k).sum(-1, keepdims=True) * v
    return output, after


def _chunks(parts: RecurrenceParts, terms: Terms, state: Array) -> tuple[Array, Array]:
    """Return the output of all tokens and the final state."""
    shape = (*terms.query.shape[:-1], terms.value.shape[-1])
    output = np.zeros(shape, terms.value.dtype)
    for first in range(0, terms.query.shape[-2], parts.chunk):
        span = slice(first, first + parts.chunk)
        output[..., span, :], state = _one_chunk(parts, terms, span, state)
        state = parts.carried(state)
    output = np.asarray(terms.scale, output.dtype) * output
    return output[..., terms.steps - 1 :: terms.steps, :], state


def _prepared(
    operator: Operator, parts: RecurrenceParts, call: Inputs, scale: float | None
) -> tuple[Inputs, Terms]:
    """Return the inputs and terms of a call."""
    key_dim = call["query"].shape[-1]
    if scale is None:
        scale = 1.0 if operator.scale == 1.0 else key_dim**-0.5
        scale = scale if parts.default_scale is None else parts.default_scale
    inputs = parts.inputs(call)
    terms = terms_of(operator.name, inputs, parts.scale(scale, key_dim))
    return inputs, parts.terms(terms)


def _initial(parts: RecurrenceParts, terms: Terms, state: Array) -> Array:
    if state is not None:
        return parts.received(state)
    shape = (*terms.value.shape[:-2], terms.key.shape[-1], terms.value.shape[-1])
    return np.zeros(shape, terms.value.dtype)


def recurrence(op: str, **parts: Any) -> Kernel:
    """Return the kernel of an operator, called with its inputs by name or in order.

    It takes a ``scale`` unless that is fixed, and an ``initial_state``; it returns
    output and state, and has an attribute ``vjp`` if it has gradients. Parameters are
    those of `RecurrenceParts`.
    """
    return _assembled(OPERATORS[op], RecurrenceParts(**parts))


def _assembled(operator: Operator, parts: RecurrenceParts) -> Kernel:
    def kernel(*positional: Array, **named: Any) -> Any:
        call, options = _bound(operator, positional, named)
        _, terms = _prepared(operator, parts, call, options.get("scale"))
        initial = _initial(parts, terms, options.get("initial_state"))
        output, final = _chunks(parts, terms, initial)
        return output.astype(call["query"].dtype), parts.returned(final)

    options = ["initial_state"]
    options += ["scale"] * (operator.has_scale and parts.default_scale is None)
    kernel.__signature__ = _signature(  # type: ignore[attr-defined]
        [one.name for one in operator.inputs if not one.optional],
        [one.name for one in operator.inputs if one.optional],
        options,
    )
    if parts.backward is not None:
        kernel.vjp = _vjp(operator, parts, parts.backward)  # type: ignore[attr-defined]
    return kernel


def _vjp(
    operator: Operator, parts: RecurrenceParts, back: RecurrenceBackward
) -> Kernel:
    signature = _signature(
        (*operator.names, "output_cotangent"), ("initial_state", "state_cotangent")
    )

    def vjp(*positional: Array, **named: Any) -> Any:
        call = signature.bind(*positional, **named).arguments
        inputs = {name: call[name] for name in operator.names}
        inputs, terms = _prepared(operator, parts, inputs, None)
        state = _initial(parts, terms, call.get("initial_state"))
        d_terms, d_state = backward(
            back, terms, state, call["output_cotangent"], call.get("state_cotangent")
        )
        gradients = input_gradients(operator.name, inputs, d_terms)
        gradients = back.gradients(gradients, inputs)
        return (*(gradients[name] for name in operator.names), d_state)

    vjp.__signature__ = signature  # type: ignore[attr-defined]
    return vjp


def _bound(
    operator: Operator, positional: tuple[Array, ...], named: Inputs
) -> tuple[Inputs, Inputs]:
    """Return the inputs that are not None, and the options."""
    call = dict(zip(operator.names, positional, strict=False))
    call |= {name: x for name, x in named.items() if name in operator.names}
    options = {name: x for name, x in named.items() if name not in operator.names}
    return {name: x for name, x in call.items() if x is not None}, options


def _signature(
    required: Iterable[str], optional: Iterable[str], options: Iterable[str] = ()
) -> inspect.Signature:
    either = inspect.Parameter.POSITIONAL_OR_KEYWORD
    only_named = inspect.Parameter.KEYWORD_ONLY
    return inspect.Signature(
        [
            *(inspect.Parameter(name, either) for name in required),
            *(inspect.Parameter(name, either, default=None) for name in optional),
            *(inspect.Parameter(name, only_named, default=None) for name in options),
        ]
    )
