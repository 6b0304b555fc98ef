"""The loop over the spans of a sequence: Python's, or one that a library compiles.

A step takes a memory and the terms of a span to the read-out of its tokens, None if
nothing is read, and to the next memory. Most libraries run one call after the other, so
Python's loop is theirs. JAX compiles what it is given, and would unroll that loop:
`linkern.core.compiled` has another.
"""

from collections.abc import Iterator, Sequence

from linkern.array import concat, on_jax
from linkern.core import compiled
from linkern.core.compiled import Step
from linkern.core.recurrence import Terms
from linkern.typing import Array

__all__ = ["Step", "scan", "spans"]


def spans(length: int, size: int) -> Iterator[slice]:
    """Cut ``range(length)`` into spans of `size`; one empty span if there is none."""
    for start in range(0, max(length, 1), size):
        yield slice(start, min(start + size, length))


def scan(
    step: Step,
    memory: Array,
    terms: Terms,
    size: int,
    constants: Sequence[Array | None] = (),
    *,
    together: int = 1,
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
        Of all tokens.
    size : int
        Tokens of a span; the last one may be shorter.
    constants : sequence of array or None
        Further arguments, the same for all spans.
    together : int
        How many times as many tokens a span has where Python loops.
    """
    if on_jax(memory):
        return compiled.scan(step, memory, terms, size, constants)
    return _looped(step, memory, terms, size * together, constants)


def _looped(
    step: Step,
    memory: Array,
    terms: Terms,
    size: int,
    constants: Sequence[Array | None],
) -> tuple[Array | None, Array]:
    length, outputs = terms.key.shape[-2], []
    if length <= size:
        return step(memory, terms, *constants)
    for span in spans(length, size):
        output, memory = step(memory, terms.span(span), *constants)
        outputs.append(output)
    read = [x for x in outputs if x is not None]
    return (concat(read, axis=-2) if read else None), memory
