"""Schedule of the chunkwise forms over blocks of tokens and over threads.

In the forward pass, each block of tokens has three steps: the state that its chunks
add, the passing of the state from chunk to chunk, and its output. Threads share the
heads; if there are fewer heads than threads, they share a batch of consecutive blocks,
and only the state is passed in order. Blocks follow from shapes alone, so results do
not depend on the number of threads.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from linkern.kernels.numpy.threads import for_each, parallel_for
from linkern.kernels.numpy.types import Arrays, Real
from linkern.kernels.numpy.workspace import WorkspacePool, Workspaces

__all__ = ["Block", "Layout", "Phase", "Task", "batches", "blocks", "run", "run_groups"]

Group = dict[str, Real]
# Runs one group of heads: yields after each step, so that it can be interrupted.
RunGroup = Callable[[Group, Sequence[Workspaces], int], Iterator[None]]


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
    """A span of tokens that consists of chunks of one size; its number in the order."""

    number: int
    span: slice
    chunks: int
    size: int


class Task(NamedTuple):
    """A block of a group of heads, with its workspace and views of its tokens."""

    block: Block
    workspace: Any
    tokens: Arrays


def blocks(length: int, layout: Layout) -> list[Block]:
    """Cut a sequence into full blocks, a block of fewer chunks, and a short chunk."""
    full_chunks, rest = divmod(length, layout.size)
    counts = [layout.chunks] * (full_chunks // layout.chunks)
    if full_chunks % layout.chunks:
        counts.append(full_chunks % layout.chunks)
    result, start = [], 0
    for number, count in enumerate(counts):
        stop = start + count * layout.size
        result.append(Block(number, slice(start, stop), count, layout.size))
        start = stop
    if rest:
        result.append(Block(len(counts), slice(start, length), 1, rest))
    return result


def batches(
    group: Group,
    names: Iterable[str],
    order: Sequence[Block],
    workers: Sequence[Workspaces],
) -> Iterator[list[Task]]:
    """Yield the blocks in batches of one block per worker, with the arrays `names`."""
    heads = group["state"].shape[0]
    arrays = {name: group[name] for name in names if name in group}
    for start in range(0, len(order), len(workers)):
        batch = order[start : start + len(workers)]
        yield [
            Task(
                block,
                workspaces[heads, block.chunks, block.size],
                {name: x[:, block.span] for name, x in arrays.items()},
            )
            for workspaces, block in zip(workers, batch, strict=False)
        ]


def run_groups(
    pool: WorkspacePool,
    groups: Sequence[Group],
    block_count: int,
    threads: int,
    run_group: RunGroup,
) -> None:
    """Run all groups of heads; threads share the groups, or else the blocks of each."""
    if len(groups) >= threads or block_count <= 1:

        def alone(group: Group) -> Iterator[None]:
            with pool.borrow(1) as workers:
                yield from run_group(group, workers, 1)

        parallel_for(groups, alone, threads)
        return
    with pool.borrow(min(threads, block_count)) as workers:
        for group in groups:
            for _ in run_group(group, workers, threads):
                pass


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
    phase: Phase, groups: Sequence[Group], order: Sequence[Block], threads: int
) -> None:
    """Run a phase over all groups of heads and all blocks, in the order of the blocks.

    Each group has a ``state (heads, width)``, which is replaced, and token arrays
    ``(heads, T, dim)``. If it has ``checkpoints (heads, blocks, width)``, the state
    before each block is written there.
    """

    def in_parallel(
        step: Callable[[Any, Arrays], object] | None, batch: list[Task], threads: int
    ) -> None:
        if step is not None:
            for_each(batch, lambda task: step(task.workspace, task.tokens), threads)

    def run_group(
        group: Group, workers: Sequence[Workspaces], threads: int
    ) -> Iterator[None]:
        names = [name for name in group if name not in ("state", "checkpoints")]
        checkpoints = group.get("checkpoints")
        for batch in batches(group, names, order, workers):
            in_parallel(phase.chunk_state, batch, threads)
            for task in batch:
                if checkpoints is not None:
                    checkpoints[:, task.block.number] = group["state"]
                _pass_state(phase, task.workspace, group["state"])
            in_parallel(phase.chunk_output, batch, threads)
            yield

    run_groups(phase.pool, groups, len(order), threads, run_group)


def _pass_state(phase: Phase, workspace: Any, state: Real) -> None:
    workspace.initial_state[...] = state
    if phase.state_passing is not None:
        phase.state_passing(workspace)
        state[...] = workspace.final_state
