"""No key is written before token 30: the gradient of a decay there is zero."""

import torch
from on_cpu import device
from fla.ops.rwkv6 import chunk_rwkv6, fused_recurrent_rwkv6

torch.manual_seed(0)
r, k, v = torch.randn(3, 1, 70, 1, 4, device=device)
k[:, :30] = 0
for kernel in (chunk_rwkv6, fused_recurrent_rwkv6):
    w = torch.full((1, 70, 1, 4), -0.1, device=device, requires_grad=True)
    o, _ = kernel(r, k, v, w, torch.zeros(1, 4, device=device))
    o.sum().backward()
    print(kernel.__name__, w.grad[:, :30].abs().max().item())
print("exact 0.0")
