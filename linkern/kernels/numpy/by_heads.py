"""Operators of several passes over the tokens, with the heads shared by threads.

Kernels have threads of their own. What an operator computes around them has not, unless
each thread runs the whole operator on heads of its own.
"""

from collections.abc import Callable, Iterator, Mapping
from math import prod
from threading import Lock
from typing import Any

import numpy as np

from linkern.core.scan import spans
from linkern.kernels.numpy.heads import group_size
from linkern.kernels.numpy.threads import in_one_thread, parallel_for, threads_for
from linkern.kernels.numpy.types import Real
from linkern.state import State

__all__ = ["by_heads"]

# Heads that run at a time: as many as kernels take, or so many that their inputs have
# this number of entries.
_HEADS, _ENTRIES = 4, 1 << 20
# Below a multiple of the work that is worth threads in a kernel, two passes at a time
# take longer: each thread allocates memory.
_WORTH = 4

# From the state and the inputs to the output and the next state.
Attend = Callable[..., tuple[Real, State[Real]]]


def by_heads(
    attend: Attend, state: State[Real], inputs: Mapping[str, Real | None]
) -> tuple[Real, State[Real]]:
    """Return ``attend(state, **inputs)``, computed for a few heads at a time.

    Parameters
    ----------
    attend : callable
        Computes each head from its part of the arrays alone.
    state : State
        State before the first token.
    inputs : mapping of str to array or None
        With the same leading axes as the state, and two of their own.
    """
    batch, sizes = state.memory.shape[:-2], state.memory.shape[-2:]
    rows = [x.shape[-2:] for x in inputs.values() if x is not None]
    length, width = max(n for n, _ in rows), sum(n for _, n in rows)
    heads = prod(batch)
    threads = threads_for(heads * length * prod(sizes) // _WORTH)
    if threads == 1 or heads < threads:
        return attend(state, **inputs)
    count = max(_HEADS, _ENTRIES // (length * width))
    count = group_size(heads, threads, count)
    groups = [
        (*index, some)
        for index in np.ndindex(*batch[:-1])
        for some in spans(batch[-1], count)
    ]
    results: list[Real] = []
    lock = Lock()

    def work(group: tuple[int | slice, ...]) -> Iterator[None]:
        parts = (None if x is None else x[group] for x in state)
        some = {name: None if x is None else x[group] for name, x in inputs.items()}
        output, after = attend(State[Any](*parts), **some)
        yield
        made = [x for x in (output, *after) if x is not None]
        with lock:
            if not results:
                results.extend(np.empty((*batch, *x.shape[1:]), x.dtype) for x in made)
        for result, x in zip(results, made, strict=True):
            result[group] = x

    with in_one_thread():
        parallel_for(groups, work, threads)
    output, memory, *normalizer = results
    return output, State(memory, normalizer[0] if normalizer else None)
