"""Operators on the shard of one rank; how states cross ranks is left to `over_ranks`.

Arrays are (batch, heads, time, dim). A token loop stands for a fast kernel.
"""

from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 -- its usual name


def operators(over_ranks):
    """Return three operators, of `over_ranks(inputs, initial_state, spans, group)`.

    It returns the output of the tokens in `spans`, and the state after all ranks.
    """

    def called(inputs, initial_state, cu_seqlens, group):
        length = inputs[1].shape[2]
        spans = own_spans(length, cu_seqlens, group)
        output, state = over_ranks(inputs, initial_state, spans, group)
        return F.pad(output, (0, 0, 0, length - output.shape[2])), state

    def gla(q, k, v, log_decay, initial_state=None, cu_seqlens=None, group=None):
        inputs = (k.shape[-1] ** -0.5 * q, k, v, log_decay, None)
        return called(inputs, initial_state, cu_seqlens, group)

    def gated_delta_rule(
        q, k, v, log_decay, beta, initial_state=None, cu_seqlens=None, group=None
    ):
        inputs = (k.shape[-1] ** -0.5 * q, k, v, log_decay[..., None], beta)
        return called(inputs, initial_state, cu_seqlens, group)

    def linear_attention(q, k, v, initial_state=None, cu_seqlens=None, group=None):
        ones = torch.ones_like(v[..., :1])  # the normalizer is one more column
        inputs = (F.elu(q) + 1, F.elu(k) + 1, torch.cat([v, ones], -1), None, None)
        output, state = called(inputs, initial_state, cu_seqlens, group)
        return output[..., :-1] / output[..., -1:], state

    return SimpleNamespace(
        gla=gla, gated_delta_rule=gated_delta_rule, linear_attention=linear_attention
    )


def fold(state, query, key, value, log_decay, beta):
    """Return the outputs of some tokens, and the state behind them."""
    outputs = [query[:, :, :0] @ state]
    for t in range(key.shape[2]):
        if log_decay is not None:
            state = state * log_decay[:, :, t, :, None].exp()
        k, write = key[:, :, t, :, None], value[:, :, t, None]
        if beta is not None:
            write = beta[:, :, t, None, None] * (write - k.mT @ state)
        state = state + k * write
        outputs.append(query[:, :, t, None] @ state)
    return torch.cat(outputs, 2), state


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


def own_spans(length, cu_seqlens, group):
    """Return the tokens of each packed sequence in the shard of this rank."""
    if cu_seqlens is None:
        return [slice(0, length)]
    lengths = [torch.zeros(1, dtype=torch.long) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, torch.tensor([length]), group)
    before = sum(int(x) for x in lengths[: dist.get_rank(group)])
    ends = (cu_seqlens.long() - before).clamp(0, length).tolist()
    return [slice(*ends[i : i + 2]) for i in range(len(ends) - 1)]


def no_state(inputs, spans):
    """Return a state of zeros for each sequence.

    It requires a gradient, so that a rank without tokens takes part in the backward
    pass as all others do.
    """
    _, key, value, *_ = inputs
    shape = (key.shape[0] * len(spans), key.shape[1], key.shape[3], value.shape[3])
    return key.new_zeros(shape, requires_grad=True)
