"""The forms: three orders in which the tokens of one equation can meet.

A form takes a memory ``(..., K, V)`` and the terms of a sequence, and returns the
read-out ``(..., T, V)`` and the memory after the last token. Forms differ in how many
tokens they take at once: in rounding, storage and speed, never in meaning.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import cast

from linkern import validate
from linkern.array import astype
from linkern.autodiff.scan import Checkpointed, scan
from linkern.core.chunkwise import attend, chunks, write
from linkern.core.recurrence import Terms, token
from linkern.kernels.dispatch import Backend, backend_of
from linkern.typing import Array

__all__ = [
    "DEFAULT_CHUNK_SIZE",
    "FORM_NAMES",
    "ONE_TOKEN",
    "Form",
    "form_named",
]

FORM_NAMES = ("auto", "recurrent", "chunkwise", "parallel")
DEFAULT_CHUNK_SIZE = 64
# Chunks whose insides are computed together: fewer calls, and their pairs still fit
# into a cache.
_TOGETHER = 8
_EMPTY = partial(chunks, size=1)


@dataclass(frozen=True)
class Form:
    """Number of tokens that meet the memory at once, and the step that they take.

    Parameters
    ----------
    step : callable
        From a memory and the terms of a span to the read-out and the next memory.
    size : int or None
        Tokens that meet the memory at once; None for all of them.
    together : int
        How many times as many a span has.
    name : str
        Name by which back ends know the form; empty for array code in any library.
    scale : float, optional
        Factor on the read-out. Only kernels that read terms as they were given need it:
        elsewhere the query is scaled.
    chunk_size : int, optional
        The size of chunks that was asked for; None lets a back end choose.
    direct : bool
        True if memories and terms are plain arrays: the step of a single token is
        called as it is.
    as_given : bool
        True if terms are as they were given, for such kernels.
    unchecked : bool
        True if nobody has looked at the values of gates, which kernels then do.
    """

    step: Callable[[Array, Terms], tuple[Array, Array]]
    size: int | None
    together: int = 1
    name: str = ""
    scale: float | None = None
    chunk_size: int | None = None
    direct: bool = False
    as_given: bool = False
    unchecked: bool = False

    def __call__(self, memory: Array, terms: Terms) -> tuple[Array, Array]:
        """Return the read-out of all tokens and the memory after the last one."""
        if self.as_given:
            return self._by_kernels(memory, terms)
        if self.direct and terms.key.shape[-2] == 1:
            return self.step(memory, terms.folded())
        backend = backend_of(memory) if self.name else None
        recurrence = None if backend is None else backend.recurrences.get(self.name)
        if backend is None or self.name not in backend.reads_as_given:
            terms = terms.folded()
        if recurrence is not None:
            result = recurrence(memory, terms, size=self.chunk_size, scale=None)
            if result is not None:
                return result
        return self._by_spans(memory, terms.folded())

    def _by_kernels(self, memory: Array, terms: Terms) -> tuple[Array, Array]:
        """Return the same by kernels that read terms as they were given."""
        backend = backend_of(memory)
        assert backend is not None
        result = backend.recurrences[self.name](
            memory,
            terms,
            size=self.chunk_size,
            scale=self.scale,
            check_gates=self.unchecked,
        )
        if result is not None:
            return result
        if self.unchecked:
            validate.gates(terms.log_decay, terms.beta)
        wide = terms.mapped(lambda x: astype(x, memory.dtype))
        output, memory = self._by_spans(memory, wide.folded())
        return (output if self.scale is None else output * self.scale), memory

    def _by_spans(self, memory: Array, terms: Terms) -> tuple[Array, Array]:
        """Take one span after the other, each with the memory the last one left."""
        length = terms.key.shape[-2]
        # Without a token there is no token's equation, but chunks may be empty.
        empty = self.step is token and not length
        step = Checkpointed(_EMPTY if empty else self.step)
        size = self.size or max(length, 1)
        both = scan(step, memory, terms, size, together=self.together)
        return cast(tuple[Array, Array], both)

    def fused(self, x: Array, *, causal: bool) -> Backend | None:
        """Return the back end that computes attention in this form in one pass.

        None if the library of `x` has no such back end.
        """
        backend = backend_of(x) if self.name else None
        if backend is None or (self.name, causal) not in backend.attends:
            return None
        return backend

    def noncausal(
        self, memory: Array, query: Array, key: Array, value: Array
    ) -> tuple[Array, Array]:
        """Let every query see every key: without an order, nothing is forgotten."""
        if self.size is None:
            return attend(memory, query, key, value), write(memory, key, value)
        _, memory = scan(_write, memory, Terms(key, key, value), self.size)
        return query @ memory, memory


@cache  # one object for each form: what JAX compiled is looked up by its step
def form_named(name: str, chunk_size: int | None) -> Form:
    """Return the form called `name`; ``"auto"`` is chunkwise, and kernels on CuPy.

    Tensors of PyTorch on a CPU reach ``auto`` and ``recurrent`` as arrays of NumPy
    (`linkern.kernels.torch`); the other forms of them are array code.
    ``recurrent`` takes one token at a time, memory first: the RNN of equations 18 to 20
    of the paper. ``chunkwise`` is quadratic inside a chunk and recurrent between them.
    ``parallel`` takes all tokens at once through the T x T matrix of scores.
    """
    if name == "recurrent":
        return Form(token, 1, name=name)
    if name == "parallel":
        return Form(_whole, None, name=name)
    size = chunk_size or DEFAULT_CHUNK_SIZE
    step = partial(chunks, size=size)
    return Form(step, size, _TOGETHER, name, chunk_size=chunk_size)


def _whole(memory: Array, terms: Terms) -> tuple[Array, Array]:
    return chunks(memory, terms, size=terms.key.shape[-2])


def _write(memory: Array, terms: Terms) -> tuple[None, Array]:
    return None, write(memory, terms.key, terms.value)


# The equation itself, for steps of decoding: no recurrence of a back end is faster for
# a single token.
ONE_TOKEN = Form(token, 1, name="step")
