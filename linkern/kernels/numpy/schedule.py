"""Schedule of the chunkwise forward over blocks of tokens and over threads.

Each block of tokens has three steps: the state that its chunks add, the passing of the
state from chunk to chunk, and its output. Threads share the heads; if there are fewer
heads than threads, they share the blocks of a group of consecutive blocks, and only the
state is passed in order. Blocks follow from shapes alone, so results do not depend on
the number of threads.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from linkern.kernels.numpy.threads import parallel_for
from linkern.kernels.numpy.types import Arrays, Real
from linkern.kernels.numpy.workspace import WorkspacePool, Workspaces

__all__ = ["Block", "Layout", "Phase", "blocks", "run"]


class Layout(NamedTuple):
    """Size of a block.

    Parameters
    ----------
    chunks : int
        Chunks in a block, at most.
    size : int
        Tokens in a chunk, at most.
    """

    chunks: int
    size: int


class Block(NamedTuple):
    """A span of tokens that consists of chunks of one size."""

    span: slice
    chunks: int
    size: int


def blocks(length: int, layout: Layout) -> list[Block]:
    """Cut a sequence into full blocks, a block of fewer chunks, and a short chunk."""
    full_chunks, rest = divmod(length, layout.size)
    counts = [layout.chunks] * (full_chunks // layout.chunks)
    if full_chunks % layout.chunks:
        counts.append(full_chunks % layout.chunks)
    result, start = [], 0
    for count in counts:
        stop = start + count * layout.size
        result.append(Block(slice(start, stop), count, layout.size))
        start = stop
    if rest:
        result.append(Block(slice(start, length), 1, rest))
    return result


@dataclass(frozen=True)
class Phase:
    """One pass over all tokens.

    Parameters
    ----------
    pool : WorkspacePool
        Source of the workspaces.
    chunk_state : callable or None
        ``chunk_state(workspace, tokens)`` computes what does not depend on the state.
    chunk_output : callable or None
        ``chunk_output(workspace, tokens)`` computes what depends on the states.
    state_passing : callable or None
        ``state_passing(workspace)`` computes ``workspace.final_state`` from
        ``workspace.initial_state``; None if the state does not change.
    """

    pool: WorkspacePool
    chunk_state: Callable[[Any, Arrays], object] | None = None
    chunk_output: Callable[[Any, Arrays], object] | None = None
    state_passing: Callable[[Any], object] | None = None


def run(
    phase: Phase,
    groups: Sequence[dict[str, Real]],
    order: Sequence[Block],
    threads: int,
) -> None:
    """Run a phase over all groups of heads and all blocks, in the order of the blocks.

    Each group has a ``state (heads, width)``, which is replaced, and token arrays
    ``(heads, T, dim)``.
    """
    if len(groups) >= threads or len(order) == 1:
        parallel_for(groups, lambda group: _run_group(phase, group, order), threads)
        return
    with phase.pool.borrow(min(threads, len(order))) as workers:
        for group in groups:
            for start in range(0, len(order), len(workers)):
                batch = order[start : start + len(workers)]
                _run_batch(phase, group, batch, workers, threads)


def _run_group(
    phase: Phase, group: dict[str, Real], order: Sequence[Block]
) -> Iterator[None]:
    """Run one group of heads over all blocks; yields after each, to be interrupted."""
    with phase.pool.borrow(1) as [workspaces]:
        for block in order:
            workspace, tokens = _assign(workspaces, group, block)
            if phase.chunk_state is not None:
                phase.chunk_state(workspace, tokens)
            _pass_state(phase, workspace, group["state"])
            if phase.chunk_output is not None:
                phase.chunk_output(workspace, tokens)
            yield


def _run_batch(
    phase: Phase,
    group: dict[str, Real],
    batch: Sequence[Block],
    workers: Sequence[Workspaces],
    threads: int,
) -> None:
    """Run one group of heads over a batch of consecutive blocks, one per worker."""
    assigned = [
        _assign(workspaces, group, block)
        for workspaces, block in zip(workers, batch, strict=False)
    ]

    def in_parallel(step: Callable[[Any, Arrays], object] | None) -> None:
        def one(item: tuple[Any, Arrays]) -> Iterator[None]:
            if step is not None:
                step(*item)
            yield

        parallel_for(assigned, one, threads)

    in_parallel(phase.chunk_state)
    for workspace, _ in assigned:
        _pass_state(phase, workspace, group["state"])
    in_parallel(phase.chunk_output)


def _assign(
    workspaces: Workspaces, group: dict[str, Real], block: Block
) -> tuple[Any, Arrays]:
    """Return the workspace of a block and views of its tokens."""
    span, chunks, size = block
    tokens = {n: x[:, span] for n, x in group.items() if n != "state"}
    return workspaces[group["state"].shape[0], chunks, size], tokens


def _pass_state(phase: Phase, workspace: Any, state: Real) -> None:
    workspace.initial_state[...] = state
    if phase.state_passing is not None:
        phase.state_passing(workspace)
        state[...] = workspace.final_state
