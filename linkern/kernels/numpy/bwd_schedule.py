"""Schedule of the backward pass over blocks of tokens and over threads.

The first pass keeps the state before each block as a checkpoint; the backward pass
recomputes a block from its checkpoint. As in `kernels.numpy.schedule`, threads share
the heads, or a batch of consecutive blocks if heads are few, and blocks depend on
shapes alone.
"""

from collections.abc import Iterator, Sequence
from functools import partial

from linkern.kernels.numpy.bwd_workspace import BackwardWorkspace
from linkern.kernels.numpy.chunk_bwd import (
    chunk_state,
    grad_state_passing,
    key_value_grad,
    load_keys,
    query_grad,
    state_passing,
)
from linkern.kernels.numpy.schedule import (
    Group,
    Layout,
    Task,
    batches,
    blocks,
    run_groups,
)
from linkern.kernels.numpy.threads import for_each
from linkern.kernels.numpy.types import Real
from linkern.kernels.numpy.workspace import WorkspacePool, Workspaces

__all__ = ["run_backward"]


def run_backward(
    pool: WorkspacePool,
    groups: Sequence[Group],
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
    count = len(blocks(max(tokens, default=0), layout))
    run_groups(pool, groups, count, threads, partial(backward, layout))


_KEYS = ("key", "value", "log_decay", "d_key", "d_value", "d_log_decay")
_QUERIES = ("query", "output", "d_query")


def _causal(
    layout: Layout, group: Group, workers: Sequence[Workspaces], threads: int
) -> Iterator[None]:
    """Run one group of heads; yields after each step, to be interrupted."""
    order = blocks(group["key"].shape[-2], layout)
    state, grad_state = group["before"], group["state"]
    checkpoints: list[Real] = []

    def recompute_and_query_grad(task: Task) -> None:
        ws, tokens, number = task.workspace, task.tokens, task.block.number
        # The first pass has left the features of the keys of all blocks but the last.
        load_keys(ws, tokens, has_features=number < len(order) - 1)
        chunk_state(ws)
        ws.initial_state[...] = checkpoints[number]
        state_passing(ws)
        query_grad(ws, tokens)

    # The state after the last block is not needed.
    for batch in batches(group, _KEYS, order[:-1], workers):
        for_each(batch, _chunk_states, threads)
        for task in batch:
            checkpoints.append(state.copy())
            _pass_state(task.workspace, state)
        yield
    checkpoints.append(state)
    for batch in batches(group, (*_KEYS, *_QUERIES), order[::-1], workers):
        for_each(batch, recompute_and_query_grad, threads)
        for task in batch:
            _pass_grad_state(task.workspace, grad_state)
        yield
        for_each(batch, _key_value_grad, threads)
        yield


def _non_causal(
    layout: Layout, group: Group, workers: Sequence[Workspaces], threads: int
) -> Iterator[None]:
    """Run one group of heads, where every query sees every key."""
    keys = blocks(group["key"].shape[-2], layout)
    queries = blocks(group["query"].shape[-2], layout)
    state, grad_state = group["before"], group["state"]

    def query_grads(task: Task) -> None:
        task.workspace.initial_state[...] = state
        query_grad(task.workspace, task.tokens)

    def key_value_grads(task: Task) -> None:
        load_keys(task.workspace, task.tokens, has_features=True)
        task.workspace.grad_final_state[...] = grad_state
        key_value_grad(task.workspace, task.tokens)

    for batch in batches(group, _KEYS, keys, workers):
        for_each(batch, _chunk_states, threads)
        for task in batch:
            _pass_state(task.workspace, state)
        yield
    for batch in batches(group, _QUERIES, queries, workers):
        for_each(batch, query_grads, threads)
        for task in batch:
            _pass_grad_state(task.workspace, grad_state)
        yield
    for batch in batches(group, _KEYS, keys, workers):
        for_each(batch, key_value_grads, threads)
        yield


def _chunk_states(task: Task) -> None:
    load_keys(task.workspace, task.tokens, has_features=False)
    chunk_state(task.workspace)


def _key_value_grad(task: Task) -> None:
    key_value_grad(task.workspace, task.tokens)


def _pass_state(workspace: BackwardWorkspace, state: Real) -> None:
    workspace.initial_state[...] = state
    state_passing(workspace)
    state[...] = workspace.final_state


def _pass_grad_state(workspace: BackwardWorkspace, grad_state: Real) -> None:
    workspace.grad_final_state[...] = grad_state
    grad_state_passing(workspace)
    grad_state[...] = workspace.grad_initial_state
