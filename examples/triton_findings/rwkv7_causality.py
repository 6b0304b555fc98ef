"""With `safe_gate` a later gate changes earlier outputs of `chunk_rwkv7`."""

import torch
from on_cpu import device
from fla.ops.rwkv7 import chunk_rwkv7, fused_recurrent_rwkv7

torch.manual_seed(0)
r, k, v, a, b = torch.randn(5, 1, 16, 1, 16, device=device) / 4
w = -torch.rand(1, 16, 1, 16, device=device)
other = torch.cat([w[:, :8], w[:, 8:] / 2], 1)
for kernel, options in (
    (chunk_rwkv7, {"safe_gate": True}),
    (fused_recurrent_rwkv7, {}),
):
    one, two = (kernel(r, g, k, v, a, b, scale=1.0, **options)[0] for g in (w, other))
    print(kernel.__name__, (one != two)[:, :8].sum().item(), "of 128 numbers differ")
