"""The recurrent form on NumPy: `linkern.core.recurrence.token` without allocations.

Each token applies the same functions to the same numbers in the same order, so results
are bitwise equal. The first token calls `token` itself: buffers take the memory layout
of its results, since matrix products may depend on the layout.
"""

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from linkern.core.recurrence import Terms, token
from linkern.kernels.numpy.chunkwise import broadcast
from linkern.kernels.numpy.heads import head_groups
from linkern.kernels.numpy.threads import (
    parallel_for,
    single_threaded_blas,
    thread_count,
)
from linkern.kernels.numpy.types import Real

__all__ = ["recurrent"]

# Tokens that are converted together, and after which an interrupt is noticed.
_SPAN = 64
# Entries of the memories of a thread; with fewer, threads wait for the interpreter.
_WORTH_THREADS = 1 << 17


def recurrent(memory: Any, terms: Terms) -> tuple[Any, Any]:
    """Return the output and the final memory, one token at a time.

    The output has the dtype of the query; the dtype of the computation is that of the
    memory.
    """
    memory, terms = broadcast(memory, terms)
    batch, length = memory.shape[:-2], terms.key.shape[-2]
    width = memory.shape[-2] if terms.transpose_state else memory.shape[-1]
    output = np.empty((*batch, length, width), terms.query.dtype)
    final = np.empty(memory.shape, memory.dtype)
    arrays = {n: x for n, x in terms._asdict().items() if isinstance(x, np.ndarray)}
    arrays |= {"memory": memory, "output": output, "final": final}
    heads = prod(batch)
    threads = max(1, min(thread_count(), memory.size // _WORTH_THREADS))
    groups = head_groups(arrays, batch, -(-heads // threads) or 1)
    with single_threaded_blas():
        parallel_for(groups, lambda group: _run_group(group, terms), threads)
    return output, final


def _run_group(group: dict[str, Real], terms: Terms) -> Iterator[None]:
    """Run one group of heads over all tokens; yields so that it can be interrupted."""
    memory: Any = group["memory"]
    output = group["output"]
    length = output.shape[-2]
    if length:
        first, rest = slice(0, 1), slice(1, length)
        result, memory = token(memory, _terms(group, terms, first))
        output[:, first] = result
        workspace = _RecurrentWorkspace(memory)
        for start in range(rest.start, rest.stop, _SPAN):
            span = slice(start, min(start + _SPAN, length))
            workspace.run(_terms(group, terms, span), output[:, span])
            yield
    group["final"][...] = memory


def _terms(group: dict[str, Real], terms: Terms, span: slice) -> Terms:
    """Return the terms of a group of heads and a span, in the dtype of the memory."""
    dtype = group["memory"].dtype
    rows: dict[str, Any] = {
        name: group[name][:, span].astype(dtype, copy=False)
        for name in Terms._fields
        if name in group
    }
    return terms._replace(**rows)


class _RecurrentWorkspace:
    """Buffers of one token of a group of heads, and its memory, which is replaced."""

    def __init__(self, memory: Real) -> None:
        heads, features, values = memory.shape
        self.memory, self.decayed = memory, np.empty_like(memory)
        self.update = np.empty((heads, features, values), memory.dtype)
        self.new_value = np.empty((heads, 1, values), memory.dtype)
        # As in `linkern.array.outer`: the second column and row stay zero.
        self.columns = np.zeros((heads, features, 2), memory.dtype)
        self.rows = np.zeros((heads, 2, values), memory.dtype)

    def run(self, terms: Terms, output: Real) -> None:
        """Run the tokens of a span one after the other."""
        result = output
        if output.dtype != self.memory.dtype:
            result = np.empty(output.shape, self.memory.dtype)
        decay = None
        if terms.log_decay is not None:
            shape = (len(self.memory), 1, terms.log_decay.shape[-1])
            decay = np.empty(shape, result.dtype)
        for t in range(output.shape[-2]):
            here = slice(t, t + 1)
            self._token(terms.span(here), result[:, here], decay)
        if result is not output:
            output[...] = result

    def _token(self, terms: Any, output: Real, decay: Real | None) -> None:
        """Evaluate `token` line by line."""
        memory, decayed = self.memory, self.memory
        read = memory.swapaxes(-1, -2) if terms.transpose_state else memory
        if terms.early_read:
            np.matmul(terms.query, read, out=output)
        if decay is not None:
            np.exp(terms.log_decay, out=decay)
            decayed = np.multiply(decay.swapaxes(-1, -2), memory, out=self.decayed)
        new_value = terms.value
        if terms.erase is not None:
            erased = memory if terms.early_erase else decayed
            new_value = np.matmul(terms.erase, erased, out=self.new_value)
            np.subtract(terms.value, new_value, out=new_value)
        self.columns[..., :1] = terms.key.swapaxes(-1, -2)
        self.rows[:, :1] = new_value
        np.matmul(self.columns, self.rows, out=self.update)
        np.add(decayed, self.update, out=memory)
        if not terms.early_read:
            np.matmul(terms.query, read, out=output)
