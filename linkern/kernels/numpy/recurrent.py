"""The recurrent form on NumPy: `linkern.core.recurrence.token`, without allocating.

Each token takes the same functions of the same numbers in the same order, so that every
bit is the same. The first one is that function itself: buffers take the layout in
memory that its results have, for products of matrices may depend on it.
"""

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.core.recurrence import Terms, token
from linkern.kernels.numpy.chunkwise import broadcast
from linkern.kernels.numpy.heads import merged
from linkern.kernels.numpy.threads import blas_held, share, thread_count

__all__ = ["recurrent"]

Real = NDArray[Any]
Named = dict[str, Real]

# Tokens after which an interrupt is looked for, and that are widened together.
_SPAN = 64
# Entries of memories for each thread: below, threads wait for the interpreter.
_WORTH_THREADS = 1 << 17


def recurrent(memory: Any, of: Terms) -> tuple[Any, Any]:
    """Return the read-out and the last memory, one token at a time.

    The read-out has the dtype of the query, everything is computed in that of the
    memory.
    """
    memory, of = broadcast(memory, of)
    batch, length = memory.shape[:-2], of.key.shape[-2]
    width = memory.shape[-2] if of.transpose_state else memory.shape[-1]
    output = np.empty((*batch, length, width), of.query.dtype)
    last = np.empty(memory.shape, memory.dtype)
    named = {name: x for name, x in of._asdict().items() if isinstance(x, np.ndarray)}
    named |= {"memory": memory, "output": output, "last": last}
    heads = prod(batch)
    threads = max(1, min(thread_count(), memory.size // _WORTH_THREADS))
    groups = merged(named, batch, -(-heads // threads) or 1)
    with blas_held():
        share(groups, lambda group: _through(group, of), threads)
    return output, last


def _through(group: Named, of: Terms) -> Iterator[None]:
    """Take some heads through all tokens."""
    memory: Any = group["memory"]
    output = group["output"]
    length = output.shape[-2]
    if length:
        first, rest = slice(0, 1), slice(1, length)
        found, memory = token(memory, _terms(group, of, first))
        output[:, first] = found
        steps = _Steps(memory)
        for start in range(rest.start, rest.stop, _SPAN):
            span = slice(start, min(start + _SPAN, length))
            steps.take(_terms(group, of, span), output[:, span])
            yield
    group["last"][...] = memory


def _terms(group: Named, of: Terms, span: slice) -> Terms:
    """Return the terms of some heads and tokens, in the dtype of the memory."""
    dtype = group["memory"].dtype
    rows: dict[str, Any] = {
        name: group[name][:, span].astype(dtype, copy=False)
        for name in Terms._fields
        if name in group
    }
    return of._replace(**rows)


class _Steps:
    """Buffers for a token of some heads, and their memory, which is replaced."""

    def __init__(self, memory: Real) -> None:
        heads, features, values = memory.shape
        self.memory, self.decayed = memory, np.empty_like(memory)
        self.added = np.empty((heads, features, values), memory.dtype)
        self.written = np.empty((heads, 1, values), memory.dtype)
        self.zero = np.zeros((), memory.dtype)

    def take(self, of: Terms, output: Real) -> None:
        """Take the tokens of a span, one after the other."""
        found = output
        if output.dtype != self.memory.dtype:
            found = np.empty(output.shape, self.memory.dtype)
        left = None
        if of.log_decay is not None:
            left = np.empty((len(self.memory), 1, of.log_decay.shape[-1]), found.dtype)
        for t in range(output.shape[-2]):
            here = slice(t, t + 1)
            self._step(of.span(here), found[:, here], left)
        if found is not output:
            output[...] = found

    def _step(self, of: Any, found: Real, left: Real | None) -> None:
        """Do what `token` does, line by line."""
        memory, decayed = self.memory, self.memory
        seen = memory.swapaxes(-1, -2) if of.transpose_state else memory
        if of.early_read:
            np.matmul(of.query, seen, out=found)
        if left is not None:
            np.exp(of.log_decay, out=left)
            decayed = np.multiply(left.swapaxes(-1, -2), memory, out=self.decayed)
        written = of.value
        if of.erase is not None:
            erased = memory if of.early_erase else decayed
            written = np.matmul(of.erase, erased, out=self.written)
            np.subtract(of.value, written, out=written)
        # A product of matrices is a sum that begins with 0: it has no negative zeros.
        np.multiply(of.key.swapaxes(-1, -2), written, out=self.added)
        np.add(self.added, self.zero, out=self.added)
        np.add(decayed, self.added, out=memory)
        if not of.early_read:
            np.matmul(of.query, seen, out=found)
