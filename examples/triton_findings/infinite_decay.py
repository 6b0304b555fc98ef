"""A log-decay of -inf is NaN in `chunk_simple_gla`, and right token by token."""

import torch
from on_cpu import device
from fla.ops.simple_gla import chunk_simple_gla, fused_recurrent_simple_gla

ones = torch.ones(1, 1, 1, 4, device=device)
for g in (-1e38, float("-inf")):
    gate = torch.full((1, 1, 1), g, device=device)
    for kernel in (chunk_simple_gla, fused_recurrent_simple_gla):
        o, _ = kernel(ones, ones, ones[..., :1], gate, scale=1.0)
        print(kernel.__name__, g, o.item())
