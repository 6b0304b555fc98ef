"""`fused_recurrent_gated_oja_rule` asserts at most 128 values, without a message."""

import torch
from on_cpu import device
from fla.ops.gated_oja_rule import fused_recurrent_gated_oja_rule

for values in (128, 129):
    q = torch.ones(1, 1, 1, 4, device=device)
    v, b = (
        torch.ones(1, 1, 1, values, device=device),
        torch.ones(1, 1, 1, device=device),
    )
    try:
        fused_recurrent_gated_oja_rule(q, q, v, v * 0, b)
        print(values, "values: a result")
    except AssertionError as error:
        print(values, f"values: AssertionError({error})")
