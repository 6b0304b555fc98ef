"""Faulty targets over ranks, each after a bug that was published, and hostile ones.

Each is an example with one function replaced while it runs.
"""

import functools
import os
import sys
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "ranks"))

import all_gather
import all_to_all
import ring
import shard
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional


def faulty(module, name, other, op="gla", place=None):
    """Return the operator of a module; in its `place` another function has that name.

    The place is the module itself, if it is left out.
    """
    right = getattr(module, op)

    @functools.wraps(right)
    def kernel(*inputs, **options):
        with patch.object(place or module, name, other):
            return right(*inputs, **options)

    return kernel


# The functions that are replaced, as they are.
Exchange, Send = all_gather.Exchange, ring.Send
per_value_head = shard.per_value_head
gathered, exchanged = all_gather.gathered, all_to_all.exchanged


class WithoutLastMap(Exchange):
    @staticmethod
    def forward(ctx, own, initial, group):
        entered, _ = Exchange.forward(ctx, own, initial, group)
        return entered, entered.clone()


class FirstHeadInBackward(Exchange):
    @staticmethod
    def backward(ctx, *cotangents):
        of_map, of_initial, _ = Exchange.backward(ctx, *cotangents)
        if ctx.rank < dist.get_world_size(ctx.group) - 1:
            of_map = of_map[:, :1].expand_as(of_map)
        return of_map, of_initial, None


class NoGradientOfState(Exchange):
    @staticmethod
    def backward(ctx, *cotangents):
        of_map, _, _ = Exchange.backward(ctx, *cotangents)
        return of_map, None, None


class NoGradientOfNext(Send):
    @staticmethod
    def backward(ctx, of_output, of_state):
        Send.backward(ctx, of_output, of_state)
        return of_output, of_state, None


def of_maps(change):
    """Return a span map with a change in what it returns, `(E | M)`."""

    def span_map(query, key, value, *gates):
        both = shard.span_map(query, key, value, *gates)
        return change(both, both[..., : value.shape[-1]], both[..., value.shape[-1] :])

    return span_map


def half_filled(_both, added, factor):
    zeros = torch.zeros_like(added[..., added.shape[-1] // 2 :])
    return torch.cat([added[..., : added.shape[-1] // 2], zeros, factor], -1)


def tfloat32(both, _added, _factor):
    mantissa, exponent = torch.frexp(both)
    return torch.ldexp((mantissa * 2**11).round() / 2**11, exponent)


def offsets_by_ranks(inputs, cu_seqlens, group):
    if cu_seqlens is None:
        return shard.own_spans(inputs, cu_seqlens, group)
    shares = cu_seqlens // dist.get_world_size(group)
    ends = shares.clamp(0, inputs[1].shape[2]).tolist()
    return [slice(*ends[i : i + 2]) for i in range(len(ends) - 1)]


def boundary_at_the_edge(inputs, cu_seqlens, group):
    """Leave out an offset that is the first token of the shard: two are one."""
    spans = shard.own_spans(inputs, cu_seqlens, group)
    for i, span in enumerate(spans[1:], 1):
        if span.start == 0 < span.stop and dist.get_rank(group):
            spans[i - 1], spans[i] = span, slice(span.stop, span.stop)
            break
    return spans


def offsets_of_the_shard(_inputs, cu_seqlens, _group):
    """Take offsets for those of the shard; right where that is declared."""
    if cu_seqlens is None:
        return [slice(None)]
    ends = cu_seqlens.tolist()
    return [slice(*ends[i : i + 2]) for i in range(len(ends) - 1)]


class Gathered(torch.autograd.Function):
    """The tokens of all ranks, in their order of a zigzag."""

    @staticmethod
    def forward(ctx, own, group):
        ctx.group = group
        return zigzag(all_gather.gathered(own, group))

    @staticmethod
    def backward(ctx, gradient):
        summed = gradient.clone()
        dist.all_reduce(summed, group=ctx.group)
        return own_pieces(summed, ctx.group), None


def zigzag(shards):
    """Return the pieces of all ranks in the order of the sequence."""
    first, second = zip(*(x.chunk(2, 2) for x in shards), strict=True)
    return torch.cat([*first, *second[::-1]], 2)


def own_pieces(whole, group):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    pieces = whole.tensor_split(2 * size, 2)
    return torch.cat([pieces[rank], pieces[2 * size - 1 - rank]], 2)


def in_zigzag(query, key, value, log_decay, initial_state=None, group=None):
    """Gated linear attention of the whole sequence, on every rank."""
    inputs = (key.shape[-1] ** -0.5 * query, key, value, log_decay)
    whole = [Gathered.apply(x, group) for x in inputs]
    if initial_state is None:
        initial_state = shard.no_state([None, key, value], [None])
    state = FromFirst.apply(initial_state, group)
    output, final = shard.fold(state, *whole, None)
    return own_pieces(output, group), final


class FromFirst(torch.autograd.Function):
    """The state of the first rank, on all of them."""

    @staticmethod
    def forward(ctx, state, group):
        ctx.group = group
        state = state.clone()
        dist.broadcast(state, 0, group)
        return state

    @staticmethod
    def backward(ctx, gradient):
        summed = gradient.clone()
        dist.all_reduce(summed, group=ctx.group)
        return None if dist.get_rank(ctx.group) else summed, None


def even_length(inputs, span):
    """Take an odd number of tokens for one less."""
    return shard.taken(inputs, slice(span.start, span.stop - span.stop % 2))


def padded(query, key, value, log_decay, *rest):
    """Pad a shard to an even number of tokens, whose decays are those of the last."""
    both = shard.span_map(query, key, value, log_decay, *rest)
    if key.shape[2] % 2:
        both = both * log_decay[:, :, -1, :, None].exp()
    return both


def other_neighbour(x, group):
    first, *others = gathered(x, group)
    return [*others, first]


def reversed_ranks(x, group):
    return gathered(x, group)[::-1]


def reversed_tokens(outgoing, shapes, group):
    received = exchanged(outgoing, shapes, group)
    alike = len({str(several) for several in shapes}) == 1
    return received[::-1] if alike and len(shapes[0]) > 1 else received


def one_batch_entry(both, _added, _factor):
    return both[:1].expand_as(both)


def without_ranks(inputs, initial_state, cu_seqlens, group):
    """Run as if there were one rank."""
    spans = shard.own_spans(inputs, cu_seqlens, group)
    if initial_state is None:
        initial_state = shard.no_state(inputs, spans)
    states = initial_state.split(inputs[1].shape[0])
    pairs = zip(states, spans, strict=True)
    results = [shard.fold(x, *shard.taken(inputs, span)) for x, span in pairs]
    outputs, states = zip(*results, strict=True)
    return shard.joined(outputs, inputs[1].shape[2]), torch.cat(states)


def bfloat16(both, _added, _factor):
    return both.bfloat16().to(both)


def queries_of_the_rank(state, query, *tokens):
    """Give queries the gradient of what their own rank alone has written."""
    output, after = shard.fold(state, query.detach(), *tokens)
    rest = [x if x is None else x.detach() for x in tokens]
    own, _ = shard.fold(torch.zeros_like(state), query, *rest)
    return output + (own - own.detach()), after


def tiled(x, heads):
    """Give value heads the key heads in another order, but on the first rank."""
    if not dist.get_rank():
        return per_value_head(x, heads)
    return x.repeat(1, heads // x.shape[1], 1, 1)


def decays_twice(_both, added, factor):
    return torch.cat([added, factor @ factor], -1)


wrong_neighbour = faulty(all_gather, "gathered", other_neighbour)
final_state_without_last_rank = faulty(all_gather, "Exchange", WithoutLastMap)
head_offset_in_backward = faulty(all_gather, "Exchange", FirstHeadInBackward)
gradient_of_state_dropped = faulty(all_gather, "Exchange", NoGradientOfState)
gradient_stops_at_the_rank = faulty(ring, "Send", NoGradientOfNext)
half_of_values_unfilled = faulty(all_gather, "span_map", of_maps(half_filled))
maps_in_tfloat32 = faulty(all_gather, "span_map", of_maps(tfloat32), "gated_delta_rule")
maps_in_bfloat16 = faulty(all_gather, "span_map", of_maps(bfloat16))
decay_counted_twice = faulty(all_gather, "span_map", of_maps(decays_twice))
first_batch_entry_for_all = faulty(all_gather, "span_map", of_maps(one_batch_entry))
cu_seqlens_by_ranks = faulty(all_gather, "own_spans", offsets_by_ranks)
boundary_at_the_edge_ignored = faulty(all_gather, "own_spans", boundary_at_the_edge)
offsets_taken_for_those_of_the_shard = faulty(
    all_gather, "own_spans", offsets_of_the_shard
)
odd_lengths_cut = faulty(ring, "taken", even_length)
padding_decays_the_state = faulty(all_gather, "span_map", padded)
queries_without_earlier_ranks = faulty(all_gather, "fold", queries_of_the_rank)
wrong_key_head = faulty(all_gather, "per_value_head", tiled, "gated_delta_rule", shard)
maps_in_reverse = faulty(all_gather, "gathered", reversed_ranks)
tokens_scrambled = faulty(all_to_all, "exchanged", reversed_tokens)
runs_without_ranks = shard.operators(without_ranks).gla


def raises_on_one(query, key, value, log_decay, group=None):
    """Refuse an odd shard, while all others wait."""
    if key.shape[2] % 2:
        msg = f"{key.shape[2]} tokens are odd"
        raise ValueError(msg)
    return all_gather.gla(query, key, value, log_decay, group=group)


def dies_on_one(query, key, value, log_decay, group=None):
    """End the process of an empty rank."""
    if not key.shape[2]:
        os._exit(3)
    return all_gather.gla(query, key, value, log_decay, group=group)


def returns_early(query, key, value, log_decay, group=None):
    """Leave the collectives to ranks that have tokens."""
    if not key.shape[2]:
        return value.new_zeros(value.shape)
    return all_gather.gla(query, key, value, log_decay, group=group)


def whole_output(query, key, value, log_decay, group=None):
    """Return the outputs of all ranks."""
    output, _ = all_gather.gla(query, key, value, log_decay, group=group)
    lengths = shard.lengths_of([None, key], group)
    pieces = [value.new_zeros(*value.shape[:2], n, value.shape[3]) for n in lengths]
    pieces[dist.get_rank(group)] = output
    return torch.cat(pieces, 2)


def wider_on_one(query, key, value, log_decay, group=None):
    """Return outputs of another dtype on the last rank."""
    output, _ = all_gather.gla(query, key, value, log_decay, group=group)
    is_last = dist.get_rank(group) == dist.get_world_size(group) - 1
    return output.double() if is_last else output


def no_state_on_first(
    query, key, value, log_decay, initial_state=None, cu_seqlens=None, group=None
):
    """Return a final state on all ranks but the first."""
    inputs = (query, key, value, log_decay, initial_state, cu_seqlens, group)
    output, state = all_gather.gla(*inputs)
    return (output, state) if dist.get_rank(group) else output


def no_normalizer_on_first(
    query, key, value, initial_state=None, cu_seqlens=None, group=None
):
    """Return the memory alone on the first rank."""
    inputs = (query, key, value, initial_state, cu_seqlens, group)
    output, state = all_gather.linear_attention(*inputs)
    return output, state if dist.get_rank(group) else state[0]


def other_collective(query, key, value, log_decay, group=None):
    """Gather on the first rank what all others add up."""
    if dist.get_rank(group):
        dist.all_reduce(torch.ones(3), group=group)
    else:
        all_gather.gathered(torch.ones(2), group)
    return all_gather.gla(query, key, value, log_decay, group=group)


def of_functional_collectives(query, key, value, log_decay):
    """Call a collective that needs no group in Python, and is of no use."""
    ranks = [*range(dist.get_world_size())]
    functional.all_reduce(torch.ones(2), "sum", ranks).sum()
    return shard.operators(without_ranks).gla(query, key, value, log_decay)


if os.environ.get("RANK") == "1":

    def other_parameters(query, key, value, log_decay, scale=None, group=None):
        """Take a scale, on one rank alone."""

    def refused_on_one(query, key, value, log_decay, beta):
        """Take a rate that gated linear attention has not."""

else:

    def other_parameters(query, key, value, log_decay, group=None):
        """Take no scale."""

    def refused_on_one(query, key, value, log_decay):
        """Take the inputs of gated linear attention."""


class Owner(torch.nn.Module):
    """A module that is made of the group, and keeps it."""

    def __init__(self, group):
        super().__init__()
        self.group = group

    def forward(
        self, query, key, value, log_decay, initial_state=None, cu_seqlens=None
    ):
        inputs = (query, key, value, log_decay, initial_state, cu_seqlens)
        return all_gather.gla(*inputs, self.group)


of_default_group = Owner(None)


class Callable:
    """A class that is no module, and takes the default group."""

    def __call__(self, query, key, value, log_decay, initial_state=None):
        return all_gather.gla(query, key, value, log_decay, initial_state)


class NeedsMore:
    """A class that cannot be made of a group alone."""

    def __init__(self, group, width):
        self.group, self.width = group, width
