"""The state after 65 tokens of `chunk_lightning_attn` is NaN."""

import torch
from on_cpu import device
from fla.ops.lightning_attn import chunk_lightning_attn, fused_recurrent_lightning_attn

x = torch.ones(1, 65, 2, 4, device=device)
for kernel in (chunk_lightning_attn, fused_recurrent_lightning_attn):
    _, state = kernel(x, x, x, layer_idx=0, num_layers=1, output_final_state=True)
    print(kernel.__name__, state[0, :, 0, 0].tolist())
