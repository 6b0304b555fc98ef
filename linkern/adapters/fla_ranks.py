"""Adapters of the kernels of fla-core that run on several ranks, by a `cp_context`.

A context is made of the offsets of all packed sequences and the group of all ranks.
Arrays are ``(B, T, H, D)``; the kernels take one batch entry, so several are several
calls.
"""

from functools import partial
from importlib import import_module
from typing import Any

from linkern.adapters.calling import published
from linkern.testing.target.ranks.fla_context import cp_context

__all__ = ["dplr", "gated_delta_product", "gated_delta_rule", "gdn2", "kda", "rwkv7"]


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


def rwkv7(
    query: Any,
    key: Any,
    value: Any,
    log_decay: Any,
    removal_key: Any,
    removal_rate: Any,
    cu_seqlens: Any = None,
    group: Any = None,
    layout: str = "contiguous",
) -> Any:
    """`chunk_rwkv7` on the shard of this rank."""
    function = published("fla.ops.rwkv7", "chunk_rwkv7")
    erased = (-removal_key, removal_rate * removal_key)
    inputs = (query, log_decay, key, value, *erased)
    context = _context(query, cu_seqlens, group, layout)
    return _of_entries(function, inputs, context)


def gated_delta_product(
    query: Any,
    key: Any,
    value: Any,
    log_decay: Any,
    beta: Any,
    num_householder: int,
    cu_seqlens: Any = None,
    group: Any = None,
    layout: str = "contiguous",
) -> Any:
    """`chunk_gated_delta_product` on the shard of this rank."""
    function = published("fla.ops.gated_delta_product", "chunk_gated_delta_product")
    inputs = (query, key, value, log_decay, beta)
    context = _context(query, cu_seqlens, group, layout)
    several = partial(function, num_householder=num_householder)
    return _of_entries(several, inputs, context)


def _context(query: Any, cu_seqlens: Any, group: Any, layout: str) -> Any:
    """Return the context of a call."""
    return cp_context(query.device, query.shape[1], cu_seqlens, group, layout)


def _of_entries(function: Any, inputs: tuple[Any, ...], context: Any) -> Any:
    """Return the outputs of all batch entries, each of a call."""
    entries = zip(*(x.split(1) for x in inputs), strict=True)
    outputs = [function(*entry, cp_context=context)[0] for entry in entries]
    return import_module("torch").cat(outputs)
