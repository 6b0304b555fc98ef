"""Tokens exchanged for heads, the way of DeepSpeed-Ulysses. `docs/ranks.md` judges it.

linkern verify examples/ranks/all_to_all.py:gla --op gla --ranks 2,3
"""

from itertools import pairwise

import torch
import torch.distributed as dist
from shard import fold, joined, lengths_of, no_state, operators, taken


def over_ranks(inputs, initial_state, cu_seqlens, group):
    """Return the output of this rank, and on the last one the state after all."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    lengths, (batch, heads) = lengths_of(inputs, group), inputs[1].shape[:2]
    ends = [0, sum(lengths)] if cu_seqlens is None else cu_seqlens.tolist()
    spans = [slice(*pair) for pair in pairwise(ends)]
    if initial_state is None:
        initial_state = no_state(inputs, spans)
    count, _, *dims = initial_state.shape
    share = [heads * (r + 1) // size - heads * r // size for r in range(size)]
    arrays = [x for x in inputs if x is not None]
    outgoing = list(zip(*(x.split(share, 1) for x in arrays), strict=True))
    shapes = [[(batch, share[rank], n, *x.shape[3:]) for x in arrays] for n in lengths]
    shapes[0].append((count, share[rank], *dims))  # states come from the first rank
    if rank == 0:
        states = initial_state.split(share, 1)
        outgoing = [(*x, s) for x, s in zip(outgoing, states, strict=True)]
    first, *others = exchanged(outgoing, shapes, group)
    *first, state = first
    parts = zip(first, *others, strict=True)
    whole = iter([torch.cat(several, 2) for several in parts])
    mine = [x if x is None else next(whole) for x in inputs]
    pairs = zip(state.split(batch), spans, strict=True)
    results = [fold(state, *taken(mine, span)) for state, span in pairs]
    outputs, states = zip(*results, strict=True)
    outputs = joined(outputs, sum(lengths)).split(lengths, 2)
    outgoing = [(x,) for x in outputs[:-1]] + [(outputs[-1], torch.cat(states))]
    shapes = [[(batch, n, lengths[rank], dims[1])] for n in share]
    if rank == size - 1:
        shapes = [[*x, (count, n, *dims)] for x, n in zip(shapes, share, strict=True)]
    received = zip(*exchanged(outgoing, shapes, group), strict=True)
    output, *final = (torch.cat(several, 1) for several in received)
    return output, final[0] if final else None


def exchanged(outgoing, shapes, group):
    """Send some tensors to each rank, and receive some, of these shapes, from each."""
    flat = [torch.cat([x.reshape(-1) for x in several]) for several in outgoing]
    sizes = [[torch.Size(shape).numel() for shape in several] for several in shapes]
    received = AllToAll.apply(torch.cat(flat), [*map(len, flat)], sizes, group)
    tensors = iter(received.split([n for several in sizes for n in several]))
    return [[next(tensors).reshape(x) for x in several] for several in shapes]


class AllToAll(torch.autograd.Function):
    """One exchange of numbers; the backward pass is the same in reverse."""

    @staticmethod
    def forward(ctx, numbers, outgoing, sizes, group):
        """Send and receive."""
        ctx.sizes, ctx.group = (outgoing, [*map(sum, sizes)]), group
        received = numbers.new_empty(sum(ctx.sizes[1]))
        dist.all_to_all_single(received, numbers, ctx.sizes[1], outgoing, group=group)
        return received

    @staticmethod
    def backward(ctx, gradient):
        """Send the gradients of what was received back."""
        returned = gradient.new_empty(sum(ctx.sizes[0]))
        dist.all_to_all_single(returned, gradient, *ctx.sizes, group=ctx.group)
        return returned, None, None, None


exported = operators(over_ranks)
gla, gated_delta_rule = exported.gla, exported.gated_delta_rule
linear_attention = exported.linear_attention
