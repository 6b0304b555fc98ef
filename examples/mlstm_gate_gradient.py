"""Gradients of gates in mlstm_kernels where a sequence is cut; it needs that alone.

    PYTHONPATH=mlstm python examples/mlstm_gate_gradient.py

The backward pass written by hand is run on a whole sequence, and on two halves of which
the first hands over its state. Before the cut the gradients of `log(sigmoid(f))` differ
in every token, by the product of the memory that is handed over and its gradient.
"""

import torch
from mlstm_kernels.torch.chunkwise.native import mlstm_chunkwise__native_custbw as mlstm

options = {"chunk_size": 16, "eps": 0.0, "autocast_kernel_dtype": torch.float32}
torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 1, 32, 4)
i, f = torch.randn(1, 1, 32), torch.randn(1, 1, 32) + 2
weights = torch.randn(1, 1, 32, 4)

whole = f.clone().requires_grad_()
(mlstm(q, k, v, i, whole, **options) * weights).sum().backward()

cut = f.clone().requires_grad_()
first, second = ([x[:, :, half] for x in (q, k, v, i, cut)]
                 for half in (slice(16), slice(16, None)))  # fmt: skip
output, (c, n, m) = mlstm(*first, return_last_states=True, **options)
c.retain_grad()
rest = mlstm(*second, c_initial=c, n_initial=n, m_initial=m, **options)
(torch.cat([output, rest], 2) * weights).sum().backward()

difference = ((cut.grad - whole.grad) / torch.sigmoid(-f))[0, 0]
print(difference[:16].numpy().round(4), "before the cut, behind it at most",
      f"{difference[16:].abs().max():.0e};")  # fmt: skip
print(f"the product is {(c * c.grad).sum():.4f}")
