"""Adapters of Triton kernels of fla-core: of HGRN, and preconditioned delta rules.

Arrays are ``(B, H, T, D)``. Kernels of HGRN know no heads; their state is
``(B, H, 1, D)``, and heads become channels, as HGRN does not mix these. Those of
preconditioned rules have one range for all heads. All others can be called as they are.
"""

from typing import Any

from linkern.adapters.calling import published, tokens_first
from linkern.adapters.preconditioned import head_by_head

__all__ = [
    "hgrn_chunkwise",
    "hgrn_recurrent",
    "preconditioned",
]


def hgrn_chunkwise(value: Any, log_decay: Any, initial_state: Any = None) -> Any:
    """`chunk_hgrn`."""
    return _hgrn("chunk_hgrn", value, log_decay, initial_state)


def hgrn_recurrent(
    value: Any, log_decay: Any, initial_state: Any = None, cu_seqlens: Any = None
) -> Any:
    """`fused_recurrent_hgrn`."""
    name = "fused_recurrent_hgrn"
    return _hgrn(name, value, log_decay, initial_state, cu_seqlens=cu_seqlens)


def _hgrn(
    name: str, value: Any, log_decay: Any, initial_state: Any, **options: Any
) -> Any:
    """Call a kernel of HGRN with the channels of all heads."""
    function = published("fla.ops.hgrn", name)
    heads = value.shape[1], value.shape[3]
    first = None if initial_state is None else initial_state.flatten(1)
    folded = (x.flatten(2) for x in tokens_first(value, log_decay))
    output, state = function(
        *folded, initial_state=first, output_final_state=True, **options
    )
    memory = state.unflatten(1, heads)[:, :, None]
    return output.unflatten(2, heads).transpose(1, 2), memory


def preconditioned(
    query: Any,
    key: Any,
    value: Any,
    log_decay: Any,
    beta: Any,
    preconditioner_log_decay: Any,
    preconditioner_beta: Any,
    center: Any,
    log_range: Any,
    scale: float | None = None,
    initial_state: Any = None,
    cu_seqlens: Any = None,
    *,
    kernel: str = "chunk",
) -> Any:
    """`chunk_precond_kda` or `fused_recurrent_precond_kda`, as `kernel` begins.

    Without channels of log-decays, `chunk_precond_gated_delta_rule` and so on. They are
    asked not to normalise, which is their default; `chunk_precond_kda` does anyway.
    """
    tokens = (query, key, value, log_decay, beta)
    sums = (preconditioner_log_decay, preconditioner_beta)
    heads, form = (center, log_range), f"{kernel}.{kernel}"
    options = {"scale": scale, "cu_seqlens": cu_seqlens}
    options |= {"use_qk_l2norm_in_kernel": False}
    return head_by_head(form, tokens, sums, heads, initial_state, **options)
