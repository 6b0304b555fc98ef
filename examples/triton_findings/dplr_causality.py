"""The same in `chunk_dplr_delta_rule`, whose kernel it is."""

import torch
from on_cpu import device
from fla.ops.generalized_delta_rule import chunk_dplr_delta_rule

torch.manual_seed(0)
q, k, v, a, b = torch.randn(5, 1, 16, 1, 16, device=device) / 4
w = -torch.rand(1, 16, 1, 16, device=device)
other = torch.cat([w[:, :8], w[:, 8:] / 2], 1)
one, two = (
    chunk_dplr_delta_rule(q, k, v, a, b, g, safe_gate=True)[0] for g in (w, other)
)
print((one != two)[:, :8].sum().item(), "of 128 numbers differ")
