"""The loop over the spans of a sequence: Python's, or one that a library compiles.

A step takes a memory and the terms of a span to the read-out of its tokens, None if
nothing is read, and to the next memory. Most libraries run one call after the other, so
Python's loop is theirs. JAX compiles what it is given, and would unroll that loop:
`linkern.core.compiled` has another.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from linkern.array import concat, on_jax
from linkern.core import compiled
from linkern.core.compiled import Step
from linkern.typing import Array

__all__ = ["Step", "scan", "spans"]


def spans(length: int, size: int) -> Iterator[slice]:
    """Cut ``range(length)`` into spans of `size`; one empty span if there is none."""
    for start in range(0, max(length, 1), size):
        yield slice(start, min(start + size, length))


def scan(
    step: Step,
    memory: Array,
    terms: Any,
    size: int,
    constants: Sequence[Array | None] = (),
    *,
    together: int = 1,
    counted: bool = False,
) -> tuple[Array | None, Array]:
    """Return the read-out of all tokens and the last memory, span after span.

    Parameters
    ----------
    step : callable
        ``step(memory, terms_of_a_span, *constants)``; hashable, and equal if it does
        the same: what is compiled is looked up by it.
    memory : array
        What the first span meets; each span leaves one of the same shape.
    terms : Terms
        Of all tokens; or another named tuple with a key and the method `span`.
    size : int
        Tokens of a span; the last one may be shorter.
    constants : sequence of array or None
        Further arguments, the same for all spans.
    together : int
        How many times as many tokens a span has where Python loops.
    counted : bool
        Pass the number of the span, from 0 on, before the constants.
    """
    if on_jax(memory):
        return compiled.scan(step, memory, terms, size, constants, counted=counted)
    length, outputs = terms.key.shape[-2], []
    for i, span in enumerate(spans(length, size * together)):
        part = terms if span == slice(0, length) else terms.span(span)
        number = (i,) if counted else ()
        output, memory = step(memory, part, *number, *constants)
        outputs.append(output)
    read = [x for x in outputs if x is not None]
    return (concat(read, axis=-2) if len(read) > 1 else outputs[0]), memory
