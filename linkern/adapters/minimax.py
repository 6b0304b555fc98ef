"""MiniMax's lightning attention, taken out of its layer.

It is retention with other decay rates, which no operator of the referee has:
`linkern.retention` with these rates agrees with it.
"""

from functools import cache
from importlib import import_module
from typing import Any

from linkern.adapters.calling import published, tokens_first

__all__ = ["minimax"]


@cache
def _minimax_layer(heads: int, dim: int, layer: int, layers: int) -> Any:
    """Build the layer with everything around its attention taken out."""
    nn = import_module("torch").nn
    name = "transformers.models.minimax"
    config = published(f"{name}.configuration_minimax", "MiniMaxConfig")(
        hidden_size=3 * heads * dim,
        num_attention_heads=heads,
        head_dim=dim,
        num_hidden_layers=layers,
        layer_types=["linear_attention"] * layers,
        block_size=16,
    )
    module = published(f"{name}.modeling_minimax", "MiniMaxLightningAttention")
    built = module(config, layer)
    for part in ("qkv_proj", "act_fn", "norm", "out_proj"):
        setattr(built, part, nn.Identity())
    del built.output_gate  # no module takes the place of a module
    built.output_gate = _Half()
    return built


class _Half:
    """A gate whose sigmoid is one half for everything."""

    def __call__(self, hidden: Any) -> Any:
        return hidden.new_zeros(())


def minimax(query: Any, key: Any, value: Any, layer: int = 0, layers: int = 8) -> Any:
    """MiniMax's lightning attention: retention whose rates are ALiBi's slopes.

    The rate of a head is ``-2^(-8 (head + 1) / heads)``, times a factor of the layer.
    """
    heads, dim = query.shape[1], query.shape[-1]
    built = _minimax_layer(heads, dim, layer, layers).to(query.dtype)
    packed = import_module("torch").cat(tokens_first(query, key, value), dim=-1)
    output, state = built(packed.flatten(2), None, None)
    return 2 * output.unflatten(2, (heads, dim)).transpose(1, 2), state
