"""Faulty variants of the kernels of fla-core that run on several ranks."""

import functools
from unittest.mock import patch

import torch
from fla.ops.kda import chunk_kda

from linkern.adapters import fla_ranks

MERGE = "fla.ops.cp.chunk_delta_h.chunk_cp_merge"


@functools.wraps(fla_ranks.gated_delta_rule)
def without_earlier_ranks(*inputs, **options):
    """Leave out the maps of all earlier ranks."""
    with patch(MERGE, lambda **_: None):
        return fla_ranks.gated_delta_rule(*inputs, **options)


def of_context(query, key, value, log_decay, beta, cu_seqlens=None, cp_context=None):
    """`chunk_kda` by the context that a target is passed, without an adapter."""
    del cu_seqlens  # those of the context are of the shard
    inputs = (query, key, value, log_decay, beta)
    entries = zip(*(x.split(1) for x in inputs), strict=True)
    return torch.cat([chunk_kda(*one, cp_context=cp_context)[0] for one in entries])
