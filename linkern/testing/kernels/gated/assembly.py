"""A chunkwise kernel with gates and erases, made of parts that can be replaced.

Most planted defects of the family are this kernel with one part exchanged. Decays
between two tokens are sums over the span between them, and what is erased comes out of
one triangular system for each chunk.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import Kernel, all_tokens
from linkern.testing.kernels.gated.backward import GatedBackward, pulled_back
from linkern.testing.kernels.gated.rows import Inputs, Rows, given_back, rows_of
from linkern.testing.spec.operators import OPERATORS, Operator

__all__ = ["GatedParts", "assembled", "decays_between", "forward_substitution"]

Array = Any
Change = Callable[[Array], Array]
# One row for each token, and inputs that the rows are made of plainly.
DIFFERENTIATED = (
    "simple_gla",
    "gla",
    "rwkv6",
    "delta_rule",
    "gated_delta_rule",
    "kda",
)


def everything(x: Any) -> Any:
    """Leave as it is."""
    return x


def same_scale(scale: float, key_dim: int) -> float:
    """Leave the scale as it was asked for."""
    del key_dim
    return scale


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
    found = known.copy()
    for t in range(1, known.shape[-2]):
        row = system[..., t : t + 1, :t]
        found[..., t : t + 1, :] += row @ found[..., :t, :]
    return found


def own_sequences(edges: list[int]) -> list[tuple[int, int, bool]]:
    """Return each packed sequence, and that it starts from nothing."""
    return [(first, last, True) for first, last in pairwise(edges)]


@dataclass(frozen=True)
class GatedParts:
    """The parts of a chunkwise kernel of the family; each default is right.

    Parameters
    ----------
    chunk : int
        Rows of a chunk.
    inputs : callable
        What becomes of the inputs, by name.
    scale : callable
        The scale asked for and the key dimension, to the one that is used.
    rows : callable
        What becomes of the rows.
    decays : callable
        Log-decays of a chunk to the decays between its tokens, and since it began.
    since : callable
        What becomes of the latter where the memory of earlier chunks is read.
    solve : callable
        Strictly lower triangular system and known side, to what is erased.
    kept : callable
        How often each token of a chunk counts in the memory after it.
    carried : callable
        What happens to the memory between chunks.
    received, returned : callable
        The initial memory and the final one, to what is used of them.
    packed : callable
        Edges of packed sequences, to spans and whether each starts from nothing.
    empty : callable
        What makes the array for outputs of packed sequences, like the values.
    default_scale : float or None
        A scale that is fixed, instead of the parameter and its default.
    takes_packed : bool
        Whether it has a parameter for where packed sequences begin.
    backward : GatedBackward or None
        The parts of the gradients; None if it has none.
    """

    chunk: int = 16
    inputs: Callable[[Inputs], Inputs] = everything
    scale: Callable[[float, int], float] = same_scale
    rows: Callable[[Rows], Rows] = everything
    decays: Callable[[Array], tuple[Array, Array]] = decays_between
    since: Change = everything
    solve: Callable[[Array, Array], Array] = forward_substitution
    kept: Callable[[int, int, int], Array] = all_tokens
    carried: Change = everything
    received: Change = everything
    returned: Change = everything
    packed: Callable[[list[int]], list[tuple[int, int, bool]]] = own_sequences
    empty: Change = np.zeros_like
    default_scale: float | None = None
    takes_packed: bool = False
    backward: GatedBackward | None = field(default_factory=GatedBackward)


def _weights(left: Array, decays: Array, right: Array) -> Array:
    return (left[..., :, None, :] * decays * right[..., None, :, :]).sum(-1)


def _moved(decays: Array, first: float) -> Array:
    """Return what held one row earlier."""
    found = np.full_like(decays, first)
    found[..., 1:, :] = decays[..., :-1, :]
    return found


def _one_chunk(
    parts: GatedParts, rows: Rows, span: slice, memory: Array
) -> tuple[Array, Array]:
    """Return what the tokens of a chunk read, and the memory after it."""
    q, k, v = (x[..., span, :] for x in (rows.query, rows.key, rows.value))
    decays, since = parts.decays(rows.log_decay[..., span, :])
    lower = np.tri(k.shape[-2], k=-1, dtype=bool)
    earlier = np.zeros_like(decays)
    earlier[..., 1:, :, :] = decays[..., :-1, :, :]
    seen = (earlier, _moved(since, 1)) if rows.before else (decays, since)
    output = _weights(q, seen[0], k) @ v + (q * parts.since(seen[1])) @ memory
    weighs = parts.kept(span.start, k.shape[-2], parts.chunk).astype(k.dtype)[:, None]
    last = decays[..., -1, :, :] * weighs
    after = np.swapaxes(since[..., -1:, :], -1, -2) * memory
    after = after + np.swapaxes(last * k, -1, -2) @ v
    if rows.erase is not None:
        a, b = rows.erase[..., span, :], rows.rate[..., span, :]
        strictly = np.where(lower[..., None], decays, 0)
        met = (earlier, _moved(since, 1)) if rows.undecayed else (strictly, since)
        known = _weights(a, met[0], k) @ v + (a * met[1]) @ memory
        erased = parts.solve(_weights(a, met[0], b), known)
        output = output + _weights(q, seen[0], b) @ erased
        after = after + np.swapaxes(last * b, -1, -2) @ erased
    if rows.bonus is not None:
        output = output + (q * rows.bonus * k).sum(-1, keepdims=True) * v
    return output, after


def _walk(parts: GatedParts, rows: Rows, memory: Array) -> tuple[Array, Array]:
    """Return the output of all rows and the memory after them."""
    output = np.zeros((*rows.query.shape[:-1], rows.value.shape[-1]), rows.value.dtype)
    for first in range(0, rows.query.shape[-2], parts.chunk):
        span = slice(first, first + parts.chunk)
        read, memory = _one_chunk(parts, rows, span, memory)
        output[..., span, :] = read
        memory = parts.carried(memory)
    output = np.asarray(rows.scale, output.dtype) * output
    return output[..., rows.each - 1 :: rows.each, :], memory


def assembled(op: str, parts: GatedParts) -> Kernel:
    """Return the kernel of an operator, called with its inputs by name or in order.

    It takes a ``scale`` unless that is fixed, an ``initial_state`` and, if its parts
    say so, ``cu_seqlens``; it returns output and memory, and has an attribute ``vjp``
    if its gradients are written down here.
    """
    operator, back = OPERATORS[op], parts.backward

    def prepared(given: Inputs, scale: Any) -> tuple[Inputs, Rows]:
        key_dim = given["query"].shape[-1]
        if scale is None:
            usual = 1.0 if operator.scale == 1.0 else key_dim**-0.5
            scale = usual if parts.default_scale is None else parts.default_scale
        inputs = parts.inputs(given)
        rows = rows_of(operator.name, inputs, parts.scale(scale, key_dim))
        return inputs, parts.rows(rows)

    def started(rows: Rows, initial_state: Any) -> Array:
        if initial_state is not None:
            return parts.received(initial_state)
        shape = (*rows.value.shape[:-2], rows.key.shape[-1], rows.value.shape[-1])
        return np.zeros(shape, rows.value.dtype)

    def whole(given: Inputs, scale: Any, initial_state: Any) -> tuple[Array, Array]:
        _, rows = prepared(given, scale)
        output, memory = _walk(parts, rows, started(rows, initial_state))
        return output.astype(given["query"].dtype), memory

    def kernel(*positional: Array, **named: Any) -> Any:
        given, options = _bound(operator, positional, named)
        scale, state = options.get("scale"), options.get("initial_state")
        edges = options.get("cu_seqlens")
        if edges is None:
            output, memory = whole(given, scale, state)
            return output, parts.returned(memory)
        output = parts.empty(given["value"])
        memories = []
        memory = state
        for first, last, fresh in parts.packed([int(n) for n in edges]):
            part = _part(operator, given, first, last)
            read, memory = whole(part, scale, None if fresh else memory)
            output[..., first:last, :] = read
            memories.append(memory)
        return output, np.concatenate(memories, axis=0)

    def vjp(*positional: Array, **named: Any) -> Any:
        named = _signature_of_vjp(operator).bind(*positional, **named).arguments
        cotangent = named["output_cotangent"]
        given = {name: named[name] for name in operator.names}
        inputs, rows = prepared(given, None)
        memory = started(rows, named.get("initial_state"))
        assert back is not None
        found, of_state = pulled_back(
            back, rows, memory, cotangent, named.get("state_cotangent")
        )
        gradients = back.given(inputs, given_back(operator.name, inputs, found))
        return (*(gradients[name] for name in operator.names), of_state)

    kernel.__signature__ = _signature(operator, parts)  # type: ignore[attr-defined]
    if back is not None and operator.name in DIFFERENTIATED:
        vjp.__signature__ = _signature_of_vjp(operator)  # type: ignore[attr-defined]
        kernel.vjp = vjp  # type: ignore[attr-defined]
    return kernel


def _bound(
    operator: Operator, positional: tuple[Array, ...], named: Inputs
) -> tuple[Inputs, Inputs]:
    """Return what was given of the inputs, and the rest."""
    given = dict(zip(operator.names, positional, strict=False))
    given |= {name: x for name, x in named.items() if name in operator.names}
    rest = {name: x for name, x in named.items() if name not in operator.names}
    return {name: x for name, x in given.items() if x is not None}, rest


def _part(operator: Operator, given: Inputs, first: int, last: int) -> Inputs:
    """Return the tokens of one packed sequence."""
    part = {}
    for name, x in given.items():
        axis = operator.input(name).token_axis
        span = (*(slice(None),) * (axis or 0), slice(first, last))
        part[name] = x if axis is None else x[span]
    return part


def _signature(operator: Operator, parts: GatedParts) -> inspect.Signature:
    either, named = (
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    )
    # What may be left out comes last.
    inputs = sorted(operator.inputs, key=lambda one: one.optional)
    options = ["initial_state"]
    options += ["scale"] * (operator.has_scale and parts.default_scale is None)
    options += ["cu_seqlens"] * parts.takes_packed
    empty = inspect.Parameter.empty
    return inspect.Signature(
        [
            *(
                inspect.Parameter(
                    one.name, either, default=None if one.optional else empty
                )
                for one in inputs
            ),
            *(inspect.Parameter(name, named, default=None) for name in options),
        ]
    )


def _signature_of_vjp(operator: Operator) -> inspect.Signature:
    either = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = (*operator.names, "output_cotangent")
    options = ("initial_state", "state_cotangent")
    return inspect.Signature(
        [
            *(inspect.Parameter(name, either) for name in names),
            *(inspect.Parameter(name, either, default=None) for name in options),
        ]
    )
