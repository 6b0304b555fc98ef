"""Adapters of Triton kernels of fla-core: those of HGRN, which know no heads.

Arrays are ``(B, H, T, D)`` and a state is ``(B, H, 1, D)``. Heads become channels, as
HGRN does not mix these. All other kernels can be called as they are.
"""

from typing import Any

from linkern.adapters.calling import published, tokens_first

__all__ = ["hgrn_chunkwise", "hgrn_recurrent"]


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
