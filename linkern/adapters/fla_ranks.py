"""Adapters of the kernels of fla-core that run on several ranks, by a `cp_context`.

A context is made of the offsets of all packed sequences and the group of all ranks.
Arrays are ``(B, T, H, D)``; the kernels take one batch entry, so several are several
calls. On a CPU, where Triton is interpreted, two functions of `fla.ops.cp` are
replaced: the one that refuses such a device, and a gather that gloo refuses.
"""

import sys
from importlib import import_module
from typing import Any

from linkern.adapters.calling import published

__all__ = ["dplr", "gated_delta_rule", "gdn2", "kda"]


def gated_delta_rule(
    query: Any,
    key: Any,
    value: Any,
    log_decay: Any,
    beta: Any,
    cu_seqlens: Any = None,
    group: Any = None,
    layout: str = "contiguous",
) -> Any:
    """`chunk_gated_delta_rule` on the shard of this rank."""
    function = published("fla.ops.gated_delta_rule", "chunk_gated_delta_rule")
    inputs = (query, key, value, log_decay, beta)
    context = _context(query, cu_seqlens, group, layout)
    return _of_entries(function, inputs, context)


def kda(
    query: Any,
    key: Any,
    value: Any,
    log_decay: Any,
    beta: Any,
    cu_seqlens: Any = None,
    group: Any = None,
    layout: str = "contiguous",
) -> Any:
    """`chunk_kda` on the shard of this rank."""
    function = published("fla.ops.kda", "chunk_kda")
    inputs = (query, key, value, log_decay, beta)
    context = _context(query, cu_seqlens, group, layout)
    return _of_entries(function, inputs, context)


def gdn2(
    query: Any,
    key: Any,
    value: Any,
    log_decay: Any,
    erase_gate: Any,
    write_gate: Any,
    cu_seqlens: Any = None,
    group: Any = None,
    layout: str = "contiguous",
) -> Any:
    """`chunk_gdn2` on the shard of this rank."""
    function = published("fla.ops.gdn2", "chunk_gdn2")
    inputs = (query, key, value, log_decay, erase_gate, write_gate)
    context = _context(query, cu_seqlens, group, layout)
    return _of_entries(function, inputs, context)


def dplr(
    query: Any,
    key: Any,
    value: Any,
    a: Any,
    b: Any,
    log_decay: Any,
    cu_seqlens: Any = None,
    group: Any = None,
    layout: str = "contiguous",
) -> Any:
    """`chunk_dplr_delta_rule` on the shard of this rank."""
    function = published("fla.ops.generalized_delta_rule", "chunk_dplr_delta_rule")
    inputs = (query, key, value, a, b, log_decay)
    context = _context(query, cu_seqlens, group, layout)
    return _of_entries(function, inputs, context)


def _context(shard: Any, cu_seqlens: Any, group: Any, layout: str) -> Any:
    """Return the context of a call: packed sequences, or one over all ranks."""
    torch = import_module("torch")
    if shard.device.type == "cpu":
        _allow_cpu()
    if cu_seqlens is None:
        length = shard.shape[1] * torch.distributed.get_world_size(group)
        cu_seqlens = torch.tensor([0, length], device=shard.device)
    build = published("fla.ops.cp", "build_cp_context")
    # Version 0.4 has no other layout, and no name for this one.
    options = {} if layout == "contiguous" else {"layout": layout}
    return build(cu_seqlens, group=group, **options)


def _of_entries(function: Any, inputs: tuple[Any, ...], context: Any) -> Any:
    """Return the outputs of all batch entries, each of a call."""
    entries = zip(*(x.split(1) for x in inputs), strict=True)
    outputs = [function(*entry, cp_context=context)[0] for entry in entries]
    return import_module("torch").cat(outputs)


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
