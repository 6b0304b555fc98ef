"""Rows behind the last packed sequence are as they were allocated, here with NaN."""

import torch
from on_cpu import device
from fla.ops.simple_gla import fused_recurrent_simple_gla

torch.use_deterministic_algorithms(True)  # fills new memory with NaN
x, ends = torch.ones(1, 6, 1, 4, device=device), torch.tensor([0, 4], device=device)
gate = torch.zeros(1, 6, 1, device=device)
o, _ = fused_recurrent_simple_gla(x, x, x, gate, cu_seqlens=ends)
print("finite rows:", o.isfinite().all(-1).flatten().tolist())
