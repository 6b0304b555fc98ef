"""The forms: three orders in which the tokens of one equation can meet.

Each form takes a memory ``(..., K, V)``, features ``(..., T, K)`` and ``(..., S, K)``
and values ``(..., S, V)``, and returns the read-out ``(..., T, V)`` and the memory
after the last token. They differ in rounding, storage and speed, never in meaning.
"""

from collections.abc import Callable, Iterator
from functools import partial

from linkern._array import concat
from linkern._chunk import attend, read, write
from linkern._typing import Array

__all__ = ["FORM_NAMES", "Form", "chunkwise", "form_named", "parallel", "recurrent"]

Form = Callable[..., tuple[Array, Array]]

FORM_NAMES = ("auto", "recurrent", "chunkwise", "parallel")
DEFAULT_CHUNK_SIZE = 64


def form_named(name: str, chunk_size: int | None) -> Form:
    """Return the form called `name`; ``"auto"`` is chunkwise, always linear."""
    if name == "recurrent":
        return recurrent
    if name == "parallel":
        return parallel
    return partial(chunkwise, chunk_size=chunk_size or DEFAULT_CHUNK_SIZE)


def recurrent(
    memory: Array, query: Array, key: Array, value: Array, *, causal: bool
) -> tuple[Array, Array]:
    """One token at a time, memory first: the RNN of the paper's equations 18 to 20."""
    outputs = []
    for token in _spans(key.shape[-2], 1):
        memory = write(memory, key[..., token, :], value[..., token, :])
        if causal:
            outputs.append(read(memory, query[..., token, :]))
    return concat(outputs, axis=-2) if causal else read(memory, query), memory


def chunkwise(
    memory: Array,
    query: Array,
    key: Array,
    value: Array,
    *,
    causal: bool,
    chunk_size: int = DEFAULT_CHUNK_SIZE,
) -> tuple[Array, Array]:
    """Quadratic inside a chunk, recurrent between chunks: linear in the length."""
    outputs = []
    for span in _spans(key.shape[-2], chunk_size):
        tokens = key[..., span, :], value[..., span, :]
        if causal:
            outputs.append(attend(memory, query[..., span, :], *tokens, causal=True))
        memory = write(memory, *tokens)
    return concat(outputs, axis=-2) if causal else read(memory, query), memory


def parallel(
    memory: Array, query: Array, key: Array, value: Array, *, causal: bool
) -> tuple[Array, Array]:
    """All tokens at once through the T x S matrix of scores: quadratic."""
    output = attend(memory, query, key, value, causal=causal)
    return output, write(memory, key, value)


def _spans(length: int, size: int) -> Iterator[slice]:
    """Cut ``range(length)`` into spans of `size`; one empty span if there is none."""
    for start in range(0, max(length, 1), size):
        yield slice(start, min(start + size, length))
