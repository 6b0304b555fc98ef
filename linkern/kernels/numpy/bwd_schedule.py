"""Schedule of the backward pass over blocks of tokens and over threads.

The first pass keeps the state before each block as a checkpoint; the backward pass
recomputes a block from its checkpoint. As in `kernels.numpy.schedule`, threads share
the heads, or a batch of consecutive blocks if heads are few, and blocks depend on
shapes alone.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from linkern.kernels.numpy.bwd_workspace import BackwardWorkspace
from linkern.kernels.numpy.chunk_bwd import (
    chunk_state,
    grad_state_passing,
    key_value_grad,
    load_keys,
    query_grad,
    state_passing,
)
from linkern.kernels.numpy.schedule import Block, Layout, blocks
from linkern.kernels.numpy.threads import parallel_for
from linkern.kernels.numpy.types import Real
from linkern.kernels.numpy.workspace import WorkspacePool, Workspaces

__all__ = ["run_backward"]

Views = dict[str, Real]

Item = TypeVar("Item")
# Applies a function to each of some independent items.
ForEach = Callable[[Callable[[Item], object], Sequence[Item]], None]


def run_backward(
    pool: WorkspacePool,
    groups: Sequence[Views],
    layout: Layout,
    threads: int,
    *,
    causal: bool,
) -> None:
    """Write the gradients of all groups of heads.

    Each group has ``before (heads, width)``, the initial state transposed, and
    ``state``, the cotangent of the final state; both are replaced. Its other arrays are
    those of tokens: inputs by name, ``output``, the cotangent of the output, and
    gradients as ``d_`` and the name.
    """
    backward = _causal if causal else _non_causal
    # Blocks may be of queries or of keys.
    tokens = (x.shape[-2] for group in groups for x in group.values() if x.ndim > 2)
    longest = max(tokens, default=0)
    count = len(blocks(longest, layout))
    if len(groups) >= threads or count <= 1:

        def run_group(group: Views) -> Iterator[None]:
            with pool.borrow(1) as workers:
                yield from backward(group, layout, workers, _serial)

        parallel_for(groups, run_group, threads)
        return
    with pool.borrow(min(threads, count)) as workers:
        for group in groups:
            for _ in backward(group, layout, workers, _in_threads(threads)):
                pass


def _serial(function: Callable[[Item], object], items: Sequence[Item]) -> None:
    for item in items:
        function(item)


def _in_threads(threads: int) -> ForEach[Any]:
    def for_each(function: Callable[[Any], object], items: Sequence[Any]) -> None:
        def one(item: Any) -> Iterator[None]:
            function(item)
            yield

        parallel_for(items, one, threads)

    return for_each


class _Task(NamedTuple):
    """A block of tokens: its workspace, its arrays, and its number in the sequence."""

    workspace: BackwardWorkspace
    tokens: Views
    number: int


def _batches(
    group: Views,
    names: Iterable[str],
    order: Sequence[tuple[int, Block]],
    workers: Sequence[Workspaces],
) -> Iterator[list[_Task]]:
    """Yield the blocks in batches of as many as there are workers."""
    heads = group["state"].shape[0]
    arrays = {name: group[name] for name in names if name in group}
    for start in range(0, len(order), len(workers)):
        batch = order[start : start + len(workers)]
        yield [
            _Task(
                workspaces[heads, block.chunks, block.size],
                {name: x[:, block.span] for name, x in arrays.items()},
                number,
            )
            for workspaces, (number, block) in zip(workers, batch, strict=False)
        ]


_KEYS = ("key", "value", "log_decay", "d_key", "d_value", "d_log_decay")
_QUERIES = ("query", "output", "d_query")


def _causal(
    group: Views,
    layout: Layout,
    workers: Sequence[Workspaces],
    for_each: ForEach[_Task],
) -> Iterator[None]:
    """Run one group of heads; yields after each step, to be interrupted."""
    order = list(enumerate(blocks(group["key"].shape[-2], layout)))
    state, grad_state = group["before"], group["state"]
    checkpoints: list[Real] = []

    def recompute_and_query_grad(task: _Task) -> None:
        ws, tokens, number = task
        # The first pass has left the features of the keys of all blocks but the last.
        load_keys(ws, tokens, has_features=number < len(order) - 1)
        chunk_state(ws)
        ws.initial_state[...] = checkpoints[number]
        state_passing(ws)
        query_grad(ws, tokens)

    # The state after the last block is not needed.
    for batch in _batches(group, _KEYS, order[:-1], workers):
        for_each(_chunk_states, batch)
        for task in batch:
            checkpoints.append(state.copy())
            _pass_state(task.workspace, state)
        yield
    checkpoints.append(state)
    for batch in _batches(group, (*_KEYS, *_QUERIES), order[::-1], workers):
        for_each(recompute_and_query_grad, batch)
        for task in batch:
            _pass_grad_state(task.workspace, grad_state)
        yield
        for_each(_key_value_grad, batch)
        yield


def _non_causal(
    group: Views,
    layout: Layout,
    workers: Sequence[Workspaces],
    for_each: ForEach[_Task],
) -> Iterator[None]:
    """Run one group of heads, where every query sees every key."""
    keys = list(enumerate(blocks(group["key"].shape[-2], layout)))
    queries = list(enumerate(blocks(group["query"].shape[-2], layout)))
    state, grad_state = group["before"], group["state"]

    def query_grads(task: _Task) -> None:
        task.workspace.initial_state[...] = state
        query_grad(task.workspace, task.tokens)

    def key_value_grads(task: _Task) -> None:
        load_keys(task.workspace, task.tokens, has_features=True)
        task.workspace.grad_final_state[...] = grad_state
        key_value_grad(task.workspace, task.tokens)

    for batch in _batches(group, _KEYS, keys, workers):
        for_each(_chunk_states, batch)
        for task in batch:
            _pass_state(task.workspace, state)
        yield
    for batch in _batches(group, _QUERIES, queries, workers):
        for_each(query_grads, batch)
        for task in batch:
            _pass_grad_state(task.workspace, grad_state)
        yield
    for batch in _batches(group, _KEYS, keys, workers):
        for_each(key_value_grads, batch)
        yield


def _chunk_states(task: _Task) -> None:
    load_keys(task.workspace, task.tokens, has_features=False)
    chunk_state(task.workspace)


def _key_value_grad(task: _Task) -> None:
    key_value_grad(task.workspace, task.tokens)


def _pass_state(workspace: BackwardWorkspace, state: Real) -> None:
    workspace.initial_state[...] = state
    state_passing(workspace)
    state[...] = workspace.final_state


def _pass_grad_state(workspace: BackwardWorkspace, grad_state: Real) -> None:
    workspace.grad_final_state[...] = grad_state
    grad_state_passing(workspace)
    grad_state[...] = workspace.grad_initial_state
