"""A kernel on tensors of PyTorch; the referee infers the library from its code.

Judge it:

    linkern verify examples/torch_attention.py:attention --op linear_attention
"""

import torch


def attention(query, key, value):
    """Causal linear attention with elu(x) + 1 on tensors (batch, heads, time, dim)."""
    q, k = (torch.nn.functional.elu(x) + 1 for x in (query, key))
    scores = torch.tril(q @ k.transpose(-1, -2))
    return (scores @ value) / scores.sum(-1, keepdim=True)
