"""Adapters of published kernels of several packages.

Each function only builds the object, names the keyword or moves the axes that its
package wants; the arithmetic is the package's own. Kernels that can be called as they
are need no function here and are named directly in `linkern.adapters.catalogue`.
"""

from functools import cache
from typing import Any

__all__ = [
    "diffusers_sana",
    "kornia_loftr",
    "linear_attention_transformer_causal",
    "linear_attention_transformer_causal_blind",
]


@cache
def _kornia_module() -> Any:
    from kornia.feature.loftr.loftr_module.linear_attention import LinearAttention

    return LinearAttention()


def kornia_loftr(query: Any, key: Any, value: Any) -> Any:
    """LoFTR's linear attention in kornia: not causal, elu+1, eps = 1e-6, ``bthd``."""
    return _kornia_module()(query, key, value)


def linear_attention_transformer_causal(query: Any, key: Any, value: Any) -> Any:
    """`causal_linear_attn` with buckets of one token, as its layer uses by default."""
    from linear_attention_transformer.linear_attention_transformer import (
        causal_linear_attn,
    )

    return causal_linear_attn(query, key, value, bucket_size=1)


def linear_attention_transformer_causal_blind(query: Any, key: Any, value: Any) -> Any:
    """`causal_linear_attn` as a function has it by default: buckets of 64 tokens."""
    from linear_attention_transformer.linear_attention_transformer import (
        causal_linear_attn,
    )

    return causal_linear_attn(query, key, value)


@cache
def _sana_module() -> Any:
    from diffusers.models.attention_processor import SanaMultiscaleLinearAttention

    return SanaMultiscaleLinearAttention(in_channels=8, out_channels=8)


def diffusers_sana(query: Any, key: Any, value: Any) -> Any:
    """Linear attention of SANA's autoencoder in diffusers, on features, channels first.

    Its `apply_linear_attention` takes ``(batch, heads, channels, tokens)``; the
    features are what its processor makes with ReLU.
    """
    channels_first = (x.transpose(-1, -2) for x in (query, key, value))
    return _sana_module().apply_linear_attention(*channels_first).transpose(-1, -2)
