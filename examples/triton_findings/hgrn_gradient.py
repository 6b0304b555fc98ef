"""`chunk_hgrn` passes no gradient through its state."""

import torch
from on_cpu import device
from fla.ops.hgrn import chunk_hgrn, fused_recurrent_hgrn

for kernel in (chunk_hgrn, fused_recurrent_hgrn):
    x, h = torch.ones(1, 2, 1, device=device), torch.ones(1, 1, device=device)
    x.requires_grad_(), h.requires_grad_()
    g = torch.zeros(1, 2, 1, device=device)
    o, state = kernel(x, g, initial_state=h, output_final_state=True)
    (o.sum() + state.sum()).backward()
    print(kernel.__name__, x.grad.flatten().tolist(), h.grad)
