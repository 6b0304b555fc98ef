"""The `cp_context` that functions of fla-core take over ranks, made by that package.

On a CPU, where Triton is interpreted, two functions of `fla.ops.cp` are replaced: the
one that refuses such a device, and a gather whose output gloo refuses.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from linkern.testing.errors import UsageError

__all__ = ["cp_context"]


def cp_context(
    device: Any, tokens: int, cu_seqlens: Any, group: Any, layout: str = "contiguous"
) -> Any:
    """Return the context of a call: packed sequences, or one over all ranks.

    Parameters
    ----------
    device : torch.device
        Device of this rank.
    tokens : int
        Tokens of each rank.
    cu_seqlens : tensor or None
        Offsets of the whole packed batch.
    group : ProcessGroup
        All ranks.
    layout : {"contiguous", "zigzag"}
        Order of the pieces of the sequence.

    Raises
    ------
    UsageError
        If fla-core is not installed.
    """
    if find_spec("fla") is None:
        msg = (
            "`cp_context` is made by fla-core, which is not installed; run "
            "`python -m pip install fla-core`, or take a `group` instead."
        )
        raise UsageError(msg)
    torch = import_module("torch")
    if device.type == "cpu":
        _allow_cpu()
    if cu_seqlens is None:
        length = tokens * torch.distributed.get_world_size(group)
        cu_seqlens = torch.tensor([0, length], device=device)
    build = import_module("fla.ops.cp").build_cp_context
    # Version 0.4 has no other layout, and no name for this one.
    options = {} if layout == "contiguous" else {"layout": layout}
    return build(cu_seqlens, group=group, **options)


def _allow_cpu() -> None:
    """Leave out the refusal of a CPU, and gather as gloo does."""
    exchange: Any = import_module("fla.ops.cp.chunk_delta_h")
    exchange.all_gather_into_tensor = _gathered
    for name, module in [*sys.modules.items()]:
        if name.startswith("fla.ops.cp.") and hasattr(module, "_check_cp_device"):
            vars(module)["_check_cp_device"] = lambda _device: None


def _gathered(x: Any, group: Any) -> tuple[Any, None]:
    """Return the tensors of all ranks along a new axis, and no handle."""
    distributed = import_module("torch.distributed")
    torch = import_module("torch")
    several = [torch.empty_like(x) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(several, x.contiguous(), group)
    return torch.stack(several), None
