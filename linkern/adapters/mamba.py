"""Adapter of mamba-ssm's Triton kernels, called without its CUDA extension."""

import sys
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Any

from linkern.adapters.calling import published, tokens_first

__all__ = ["ssd"]


@cache
def _combined() -> Any:
    """Import the kernels without the packages that they are in, which need CUDA."""
    path = None
    for name in ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.utils"):
        if name not in sys.modules:
            spec = PathFinder.find_spec(name, path)
            if spec is None:
                msg = f"No module named {name!r}"
                raise ModuleNotFoundError(msg, name=name)
            sys.modules[name] = module_from_spec(spec)
        path = [*sys.modules["mamba_ssm"].__path__]
    return published("mamba_ssm.ops.triton.ssd_combined", "mamba_chunk_scan_combined")


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
    output, state = _combined()(
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
