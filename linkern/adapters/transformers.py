"""Adapters of the plain PyTorch functions of transformers.

Each adapter renames arguments, moves axes and transposes states; the arithmetic is the
package's. Arrays are ``(B, H, T, D)`` and a state is ``(B, H, K, V)``, whatever the
package has.
"""

from collections.abc import Callable
from typing import Any

from linkern.adapters.calling import published, tokens_first

__all__ = [
    "gated_delta_chunk",
    "gated_delta_recurrent",
    "kimi_chunk",
    "kimi_recurrent",
    "mamba2",
    "mamba2_step",
    "rwkv4",
]

_KIMI = "transformers.models.kimi_linear.modeling_kimi_linear"
_MAMBA2 = "transformers.models.mamba2.modeling_mamba2"
_QWEN3_NEXT = "transformers.models.qwen3_next.modeling_qwen3_next"


def _recurrent(module: str, name: str) -> Callable[..., Any]:
    """Return a published recurrent delta rule, called so that it returns its state."""

    def attend(
        query: Any,
        key: Any,
        value: Any,
        g: Any,
        beta: Any,
        initial_state: Any = None,
        **options: Any,
    ) -> Any:
        output, state = published(module, name)(
            *tokens_first(query, key, value, g, beta),
            initial_state=initial_state,
            output_final_state=True,
            **options,
        )
        return output.transpose(1, 2), state

    return attend


def _chunkwise(module: str, name: str) -> Callable[..., Any]:
    """Return a published chunkwise delta rule, called so that it returns its state."""
    call = _recurrent(module, name)

    def attend(
        query: Any,
        key: Any,
        value: Any,
        g: Any,
        beta: Any,
        initial_state: Any = None,
        chunk_size: int = 64,
        **options: Any,
    ) -> Any:
        inputs = (query, key, value, g, beta, initial_state)
        return call(*inputs, chunk_size=chunk_size, **options)

    return attend


gated_delta_recurrent = _recurrent(_QWEN3_NEXT, "torch_recurrent_gated_delta_rule")
gated_delta_chunk = _chunkwise(_QWEN3_NEXT, "torch_chunk_gated_delta_rule")
kimi_recurrent = _recurrent(_KIMI, "recurrent_kimi_delta_attention")
kimi_chunk = _chunkwise(_KIMI, "chunk_kimi_delta_attention")


def mamba2(
    query: Any,
    key: Any,
    value: Any,
    log_decay: Any,
    initial_state: Any = None,
    chunk_size: int = 64,
) -> Any:
    """`mamba2_chunk_scan` with a step of one, so that its A is the log-decay itself."""
    function = published(_MAMBA2, "mamba2_chunk_scan")
    C, B, x, A = tokens_first(query, key, value, log_decay)  # noqa: N806 - its names
    state = None if initial_state is None else initial_state.transpose(-1, -2)
    output, state = function(
        x,
        A.new_ones(A.shape),
        A,
        B,
        C,
        chunk_size,
        initial_states=state,
        return_final_states=True,
    )
    return output.transpose(1, 2), state.transpose(-1, -2)


def mamba2_step(
    query: Any, key: Any, value: Any, log_decay: Any, initial_state: Any = None
) -> Any:
    """`mamba2_selective_state_update`, once for every token; it writes to its state."""
    function = published(_MAMBA2, "mamba2_selective_state_update")
    batch, heads, length, dim = value.shape
    state = value.new_zeros(batch, heads, dim, key.shape[-1])
    if initial_state is not None:
        state = initial_state.transpose(-1, -2).clone()
    output = value.new_zeros(value.shape)
    for t in range(length):
        x, B, C = value[:, :, t], key[:, :, t], query[:, :, t]  # noqa: N806 - its names
        A = log_decay[:, :, t, None, None]  # noqa: N806
        step = x.new_ones(x.shape)
        output[:, :, t] = function(state, x, step, A, B, C)
    return output, state.transpose(-1, -2)


def rwkv4(
    key: Any, value: Any, log_decay: Any, bonus: Any, initial_state: Any = None
) -> Any:
    """`rwkv_linear_attention_cpu`: heads are channels, the decay is ``-exp``.

    Its state is a numerator and a denominator divided by the exponential of a maximum.
    """
    function = published(
        "transformers.models.rwkv.modeling_rwkv", "rwkv_linear_attention_cpu"
    )
    heads = (value.shape[1], value.shape[-1])
    rate, first = (x.expand(heads).flatten() for x in (-log_decay, bonus))
    # A rate of zero has no logarithm; one as small is no different, nor its gradient.
    rate = rate.where(rate >= 1e-30, rate + 1e-30)
    k, v = (x.transpose(1, 2).flatten(2) for x in (key, value))
    state = None
    if initial_state is not None:
        memory, normalizer = (x.flatten(1) for x in initial_state)
        empty = normalizer.isneginf()
        den = 1.0 - empty.to(memory.dtype)
        state = (memory * den, den, normalizer.masked_fill(empty, -1e38))
    output, (num, den, largest) = function(
        rate.log(), first, k, v, state=state, return_state=True
    )
    mean = (num / den.where(den > 0, 1.0)).unflatten(1, heads)[:, :, None]
    normalizer = (den.log() + largest).unflatten(1, heads)
    return output.unflatten(2, heads).transpose(1, 2), (mean, normalizer)
