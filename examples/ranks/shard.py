"""Operators on the shard of one rank; how states cross ranks is left to `over_ranks`.

Arrays are (batch, heads, time, dim). A loop over tokens stands for a fast kernel.
"""

from itertools import pairwise
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 -- its usual name


def operators(over_ranks):
    """Return three operators, of `over_ranks(inputs, initial_state, offsets, group)`.

    It returns the output of the shard, and the state after the tokens of all ranks.
    """

    def gla(q, k, v, log_decay, initial_state=None, cu_seqlens=None, group=None):
        inputs = (k.shape[-1] ** -0.5 * q, k, v, log_decay, None)
        return over_ranks(inputs, initial_state, cu_seqlens, group)

    def gated_delta_rule(
        q, k, v, log_decay, beta, initial_state=None, cu_seqlens=None, group=None
    ):
        q, k = (per_value_head(x, v.shape[1]) for x in (k.shape[-1] ** -0.5 * q, k))
        inputs = (q, k, v, log_decay[..., None], beta)
        return over_ranks(inputs, initial_state, cu_seqlens, group)

    def linear_attention(q, k, v, initial_state=None, cu_seqlens=None, group=None):
        ones = torch.ones_like(v[..., :1])  # the normalizer is one more column
        inputs = (F.elu(q) + 1, F.elu(k) + 1, torch.cat([v, ones], -1), None, None)
        if initial_state is not None:
            memory, normalizer = initial_state
            initial_state = torch.cat([memory, normalizer[..., None]], -1)
        output, state = over_ranks(inputs, initial_state, cu_seqlens, group)
        total = output[..., -1:]
        output = output[..., :-1] / total.where(total > 0, 1)  # 0 / 0 in no sequence
        return output, None if state is None else (state[..., :-1], state[..., -1])

    return SimpleNamespace(
        gla=gla, gated_delta_rule=gated_delta_rule, linear_attention=linear_attention
    )


def per_value_head(x, heads):
    """Return the key head of each value head, of which several share one."""
    return x.repeat_interleave(heads // x.shape[1], 1)


def fold(state, query, key, value, log_decay, beta):
    """Return the outputs of some tokens, and the state behind them."""
    states, writes = [state], (key if beta is None else beta[..., None] * key)
    decays = [1.0] * key.shape[2]
    if log_decay is not None:
        decays = log_decay.exp()[..., None].unbind(2)
    rows = (x[..., None, :].unbind(2) for x in (key, value))
    for decay, write, k, v in zip(
        decays, writes[..., None].unbind(2), *rows, strict=True
    ):
        state = decay * state
        state = state + write * (v if beta is None else v - k @ state)
        states.append(state)
    after = torch.stack(states, 2)[:, :, 1:]
    return (query[..., None, :] @ after)[..., 0, :], state


def span_map(query, key, value, log_decay, beta):
    """Return the map `S -> M S + E` of some tokens, as `(E | M)`.

    `M` is what they make of the identity where they write nothing.
    """
    shape, width = (*key.shape[:2], key.shape[-1]), key.shape[-1]
    identity = torch.eye(width).to(key).expand(*shape, -1)
    empty = torch.cat([key.new_zeros(*shape, value.shape[-1]), identity], -1)
    return fold(empty, query, key, F.pad(value, (0, width)), log_decay, beta)[1]


def taken(inputs, span):
    """Return the inputs of some tokens."""
    return [x if x is None else x[:, :, span] for x in inputs]


def lengths_of(inputs, group):
    """Return the number of tokens of each rank."""
    own = torch.tensor([inputs[1].shape[2]])
    lengths = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(lengths, own, group)
    return [int(x) for x in lengths]


def own_spans(inputs, cu_seqlens, group):
    """Return the tokens of each packed sequence in the shard of this rank."""
    length = inputs[1].shape[2]
    if cu_seqlens is None:
        return [slice(0, length)]
    before = sum(lengths_of(inputs, group)[: dist.get_rank(group)])
    ends = (cu_seqlens.long() - before).clamp(0, length).tolist()
    return [slice(*pair) for pair in pairwise(ends)]


def joined(outputs, length):
    """Return the outputs of all sequences, and zeros behind the last one."""
    output = torch.cat(outputs, 2)
    return F.pad(output, (0, 0, 0, length - output.shape[2]))


def no_state(inputs, spans):
    """Return a state of zeros for each sequence.

    It requires a gradient, so that a rank without tokens takes part in the backward
    pass as all others do.
    """
    _, key, value, *_ = inputs
    shape = (key.shape[0] * len(spans), key.shape[1], key.shape[3], value.shape[3])
    return key.new_zeros(shape, requires_grad=True)
