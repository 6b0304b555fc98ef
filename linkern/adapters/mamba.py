"""Adapter of mamba-ssm's Triton kernels, called without its CUDA extension."""

import sys
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Any

from linkern.adapters.calling import published, tokens_first

__all__ = ["mamba3", "ssd"]

# Tokens in a chunk of Mamba-3.
CHUNK = 16


@cache
def _kernel(module: str, function: str) -> Any:
    """Import a kernel without the packages that it is in, which need CUDA."""
    path = None
    for name in ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.utils"):
        if name not in sys.modules:
            spec = PathFinder.find_spec(name, path)
            if spec is None:
                msg = f"No module named {name!r}"
                raise ModuleNotFoundError(msg, name=name)
            sys.modules[name] = module_from_spec(spec)
        path = [*sys.modules["mamba_ssm"].__path__]
    return published(f"mamba_ssm.ops.triton.{module}", function)


def ssd(
    query: Any,
    key: Any,
    value: Any,
    initial_state: Any = None,
    chunk_size: int = 64,
) -> Any:
    """`mamba_chunk_scan_combined` with steps of one, and the decays of retention."""
    torch = import_module("torch")
    C, B, x = tokens_first(query, key, value)  # noqa: N806 - its names
    heads = torch.arange(x.shape[2], dtype=torch.float64)
    output, state = _kernel("ssd_combined", "mamba_chunk_scan_combined")(
        x,
        x.new_ones(x.shape[:3]),
        torch.log1p(-(2.0 ** (-5 - heads))).to(torch.float32),
        B,
        C,
        chunk_size,
        initial_states=None if initial_state is None else initial_state.mT,
        return_final_states=True,
    )
    return output.transpose(1, 2), state.mT


def mamba3(
    query: Any,
    key: Any,
    value: Any,
    angle: Any,
    dt: Any,
    log_decay: Any,
    trapezoid: Any,
    initial_state: Any = None,
) -> Any:
    """`mamba3_siso_combined` in the dtype of the arrays, not in bfloat16 at any rate.

    Its chunks have 16 tokens; a larger one takes longer to interpret.
    """
    torch = import_module("torch")
    function = _kernel("mamba3.mamba3_siso_combined", "_Mamba3Function")
    # Descriptors of tensors want aligned memory.
    q, k, v, angles = (
        x.clone(memory_format=torch.contiguous_format)
        for x in tokens_first(query, key, value, angle)
    )
    heads, pairs, width = v.shape[2], angles.shape[-1], k.shape[-1]
    none = torch.zeros(heads, width, dtype=q.dtype)
    before = (None,) * 4
    if initial_state is not None:
        memory, rest = initial_state
        parts = rest.split((pairs, width, v.shape[-1]), dim=-1)
        before = parts[0], memory.mT, *parts[1:]
    decays, dt = log_decay.float(), dt.float()
    steps = (decays, dt, torch.logit(trapezoid), none, none, angles)
    output, *after = function.apply(
        q, k, v, *steps, None, None, *before, None, CHUNK, True
    )
    turned, memory, *last = after
    return output.transpose(1, 2), (memory.mT, torch.cat([turned, *last], dim=-1))
