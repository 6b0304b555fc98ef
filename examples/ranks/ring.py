"""States handed from rank to rank, one after the other.

Each rank waits for the state before its tokens, and sends the state behind them on. No
two ranks work at once, but only `K V` numbers cross. `docs/ranks.md` judges it:

    linkern verify examples/ranks/ring.py:gla --op gla --ranks 2,3
"""

import torch
import torch.distributed as dist
from shard import fold, joined, no_state, operators, own_spans, taken


def over_ranks(inputs, initial_state, cu_seqlens, group):
    """Return the output of this rank, and the state behind its tokens."""
    spans = own_spans(inputs, cu_seqlens, group)
    if initial_state is None:
        initial_state = no_state(inputs, spans)
    states = Receive.apply(initial_state, group).split(inputs[1].shape[0])
    pairs = zip(states, spans, strict=True)
    results = [fold(state, *taken(inputs, span)) for state, span in pairs]
    outputs, states = zip(*results, strict=True)
    output = joined(outputs, inputs[1].shape[2])
    return Send.apply(output, torch.cat(states), group)


class Receive(torch.autograd.Function):
    """The state from the rank before, on the first rank the one that is passed."""

    @staticmethod
    def forward(ctx, initial, group):
        """Wait for the state."""
        ctx.group = group
        state, before = initial.clone(), neighbour(-1, group)
        if before is not None:
            dist.recv(state, before, group)
        return state

    @staticmethod
    def backward(ctx, of_state):
        """Send its gradient back."""
        before = neighbour(-1, ctx.group)
        if before is None:
            return of_state, None
        dist.send(of_state.contiguous(), before, ctx.group)
        return None, None


class Send(torch.autograd.Function):
    """The state for the next rank; the output passes through, to wait for gradients."""

    @staticmethod
    def forward(ctx, output, state, group):
        """Send the state."""
        ctx.group, after = group, neighbour(1, group)
        if after is not None:
            dist.send(state.contiguous(), after, group)
        return output.clone(), state.clone()

    @staticmethod
    def backward(ctx, of_output, of_state):
        """Wait for its gradient."""
        after = neighbour(1, ctx.group)
        if after is not None:
            of_next = torch.empty_like(of_state)
            dist.recv(of_next, after, ctx.group)
            of_state = of_state + of_next
        return of_output, of_state, None


def neighbour(step, group):
    """Return the rank before or after this one, None at the ends."""
    rank = dist.get_rank(group) + step
    ranks = dist.get_process_group_ranks(group)
    return ranks[rank] if 0 <= rank < len(ranks) else None


exported = operators(over_ranks)
gla, gated_delta_rule = exported.gla, exported.gated_delta_rule
linear_attention = exported.linear_attention
