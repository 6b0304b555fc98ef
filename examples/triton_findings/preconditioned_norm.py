"""`chunk_precond_kda` normalises queries and keys, though it is asked not to."""

import torch
from on_cpu import device
from fla.ops.precond_kda import chunk_precond_kda, fused_recurrent_precond_kda

x = torch.ones(1, 1, 1, 4, device=device)
rows, gate = (x, x, x, 0 * x), torch.ones(1, 1, 1, device=device)
for kernel in (chunk_precond_kda, fused_recurrent_precond_kda):
    gates = {"g_atk": 0 * gate, "beta_atk": gate, "beta": gate}
    output, *_ = kernel(*rows, **gates, x=1.0, use_qk_l2norm_in_kernel=False)
    print(kernel.__name__, round(output.flatten()[0].item(), 3))
