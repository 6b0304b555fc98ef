"""Driver of the chunkwise backward on NumPy for any terms, in arrays of any layout.

The forward pass keeps the state before each block as a checkpoint, from which the
backward pass recomputes the block. The blocks follow from shapes alone.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from linkern.core.recurrence import Terms
from linkern.kernels.numpy.chunk_delta import Traits, traits_of
from linkern.kernels.numpy.chunk_delta_bwd import (
    DeltaBackwardWorkspace,
    grad_state_passing,
    input_grad,
    output_grad,
    recompute,
)
from linkern.kernels.numpy.chunkwise import chunks
from linkern.kernels.numpy.forward import pack_state, unpack_state
from linkern.kernels.numpy.heads import group_size, head_groups
from linkern.kernels.numpy.schedule import Layout, Task, batches, blocks, run_groups
from linkern.kernels.numpy.threads import (
    for_each,
    single_threaded_blas,
    small_buffers,
    threads_for,
)
from linkern.kernels.numpy.types import Real, Shape
from linkern.kernels.numpy.workspace import WorkspacePool, Workspaces

__all__ = ["Checkpoints", "forward", "pullback"]

# Chunks of a block with many heads, heads of one at most, and chunks of all its heads.
# Smaller blocks take more calls, larger ones leave the cache of a core.
_CHUNKS, _HEADS, _TILES = 8, 4, 16


class Checkpoints(NamedTuple):
    """States before the blocks of a sequence.

    Parameters
    ----------
    states : array (..., blocks, K * V)
        One for each block.
    layout : Layout
        Chunks of a block, and tokens of a chunk.
    """

    states: Real
    layout: Layout


def forward(memory: Any, terms: Terms, size: int) -> tuple[Any, Any, Checkpoints]:
    """Return the results of `chunks`, and the checkpoints for `pullback`.

    All arrays have the same leading axes.
    """
    *batch, features, values = memory.shape
    length = terms.key.shape[-2]
    per_block = max(_CHUNKS, _TILES // max(1, prod(batch)))
    layout = Layout(per_block, max(1, min(size, length)))
    count = len(blocks(length, layout))
    states = np.empty((*batch, count, features * values), memory.dtype)
    output, last = chunks(memory, terms, size, checkpoints=states, per_block=per_block)
    return output, last, Checkpoints(states, layout)


def pullback(
    terms: Terms,
    checkpoints: Checkpoints,
    output_cotangent: Real | None,
    memory_cotangent: Real | None,
) -> tuple[Real, dict[str, Real]]:
    """Return the gradients of the inputs of `forward`.

    Parameters
    ----------
    terms : Terms
        As in the forward pass.
    checkpoints : Checkpoints
        Of the forward pass.
    output_cotangent : array or None
        Cotangent of the output; None for zero, also for the next one.
    memory_cotangent : array (..., K, V) or None
        Cotangent of the memory after the last token.

    Returns
    -------
    memory : array (..., K, V)
        Gradient of the memory before the first token.
    terms : dict of str to array
        Gradients of the arrays of the terms, in their shapes and dtypes.
    """
    *batch, length, features = terms.key.shape
    values, dtype = terms.value.shape[-1], checkpoints.states.dtype
    traits, layout = traits_of(terms), checkpoints.layout
    arrays: dict[str, Any] = {
        name: x for name, x in terms._asdict().items() if isinstance(x, np.ndarray)
    }
    gradients = {name: np.empty(x.shape, x.dtype) for name, x in arrays.items()}
    if output_cotangent is None:
        width = features if terms.transpose_state else values
        nothing = np.zeros((), dtype)
        output_cotangent = np.broadcast_to(nothing, (*batch, length, width))
    if memory_cotangent is None:
        state = np.zeros((*batch, features * values), dtype)
    else:
        state = pack_state(memory_cotangent.astype(dtype, copy=False), None)
    if length:
        arrays |= {f"d_{name}": x for name, x in gradients.items()}
        arrays |= {"output": output_cotangent, "state": state}
        pool = _pool(features, values, dtype, traits)
        _run(pool, arrays, checkpoints.states, layout, tuple(batch))
    return unpack_state(state, features, values, normalize=False)[0], gradients


def _pool(features: int, values: int, dtype: Any, traits: Traits) -> WorkspacePool:
    def make(heads: int, chunks: int, size: int, _: object) -> DeltaBackwardWorkspace:
        shape = Shape(heads, chunks, size, features, values)
        return DeltaBackwardWorkspace(shape, dtype, traits)

    return WorkspacePool(
        (DeltaBackwardWorkspace, features, values, dtype, traits), make
    )


def _run(
    pool: WorkspacePool,
    arrays: dict[str, Any],
    checkpoints: Real,
    layout: Layout,
    batch: tuple[int, ...],
) -> None:
    """Run all groups of heads; `state` and the gradients are replaced."""
    heads, length = prod(batch), arrays["key"].shape[-2]
    # The backward pass takes more than twice the time of the forward pass.
    threads = threads_for(2 * heads * length * checkpoints.shape[-1])
    count = group_size(heads, threads, _HEADS)
    groups = head_groups({**arrays, "checkpoints": checkpoints}, batch, count)
    order = blocks(length, layout)
    with single_threaded_blas(), small_buffers():
        run_groups(pool, groups, len(order), threads, partial(_run_group, order))


def _run_group(
    order: Sequence[Any],
    group: dict[str, Real],
    workers: Sequence[Workspaces],
    threads: int,
) -> Iterator[None]:
    """Run one group of heads; yields after each step, to be interrupted."""
    state, checkpoints = group["state"], group["checkpoints"]
    names = [name for name in group if name not in ("state", "checkpoints")]

    def before(task: Task) -> None:
        recompute(task.workspace, task.tokens, checkpoints[:, task.block.number])
        output_grad(task.workspace)

    def after(task: Task) -> None:
        input_grad(task.workspace, task.tokens)

    for batch in batches(group, names, order[::-1], workers):
        for_each(batch, before, threads)
        for task in batch:
            task.workspace.grad_final_state[...] = state
            grad_state_passing(task.workspace)
            state[...] = task.workspace.grad_initial_state
        yield
        for_each(batch, after, threads)
        yield
