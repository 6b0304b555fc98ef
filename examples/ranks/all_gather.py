"""States exchanged by an all-gather of span maps, the way of LASP-2.

Each rank folds its tokens to one affine map `S -> M S + E`, all ranks gather all maps,
`K (K + V)` numbers for each head, and each enters its own tokens with the state that
the maps before it make. `docs/ranks.md` judges it:

    linkern verify examples/ranks/all_gather.py:gla --op gla --ranks 2,3
"""

import torch
import torch.distributed as dist
from shard import fold, joined, no_state, operators, own_spans, span_map, taken


def over_ranks(inputs, initial_state, cu_seqlens, group):
    """Return the output of this rank, and the state after the tokens of all ranks."""
    spans = own_spans(inputs, cu_seqlens, group)
    if initial_state is None:
        initial_state = no_state(inputs, spans)
    own = [taken(inputs, span) for span in spans]
    maps = torch.cat([span_map(*x) for x in own])
    entered, final = Exchange.apply(maps, initial_state, group)
    states = entered.split(inputs[1].shape[0])
    outputs = [fold(state, *x)[0] for state, x in zip(states, own, strict=True)]
    return joined(outputs, inputs[1].shape[2]), final


class Exchange(torch.autograd.Function):
    """States before the tokens of this rank, and after those of the last one."""

    @staticmethod
    def forward(ctx, own, initial, group):
        """Gather the maps of all ranks, and apply one after the other."""
        maps, columns = gathered(own, group), initial.shape[-1]
        states = [initial.clone()]
        dist.broadcast(states[0], 0, group)
        for x in maps:
            states.append(x[..., columns:] @ states[-1] + x[..., :columns])
        ctx.group, ctx.rank = group, dist.get_rank(group)
        ctx.save_for_backward(*states, *(x[..., columns:] for x in maps))
        return states[ctx.rank].clone(), states[-1].clone()

    @staticmethod
    def backward(ctx, of_entered, of_final):
        """Gather the cotangents of all ranks, and take them back through the maps."""
        cotangents = gathered(torch.stack([of_entered, of_final]), ctx.group)
        size = len(cotangents)
        states, transitions = ctx.saved_tensors[:size], ctx.saved_tensors[size + 1 :]
        later = sum(x[1] for x in cotangents)
        for r in reversed(range(size)):
            if r == ctx.rank:
                of_map = torch.cat([later, later @ states[r].mT], -1)
            later = transitions[r].mT @ later + cotangents[r][0]
        return of_map, None if ctx.rank else later, None


def gathered(x, group):
    """Return the tensors of all ranks."""
    several = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(several, x.contiguous(), group)
    return several


exported = operators(over_ranks)
gla, gated_delta_rule = exported.gla, exported.gated_delta_rule
linear_attention = exported.linear_attention
