"""Published kernels with decays, erases and slots, told in the words of the referee.

Each function renames arguments, moves axes and packs states; the arithmetic is the
package's own. Arrays are ``(B, H, T, D)`` and a state is ``(B, H, K, V)``, whatever
the package has. What can be called as it is has no function here.
"""

from functools import cache
from importlib import import_module
from inspect import unwrap
from typing import Any

__all__ = [
    "fla_abc",
    "fla_abc_cumsum",
    "fla_dplr",
    "fla_dplr_chunkwise",
    "fla_gated_delta_product",
    "fla_gsa",
    "fla_hgrn",
    "fla_iplr",
    "fla_iplr_chunkwise",
    "fla_mesa",
    "fla_mesa_conjugate_gradients",
    "fla_rwkv7",
    "transformers_gated_delta_chunk",
    "transformers_gated_delta_recurrent",
    "transformers_kimi_chunk",
    "transformers_kimi_recurrent",
    "transformers_mamba2",
    "transformers_mamba2_step",
    "transformers_minimax",
    "transformers_rwkv4",
]

_DPLR = "fla.ops.generalized_delta_rule.dplr.naive"
_IPLR = "fla.ops.generalized_delta_rule.iplr.naive"
_KIMI = "transformers.models.kimi_linear.modeling_kimi_linear"
_MAMBA2 = "transformers.models.mamba2.modeling_mamba2"
_QWEN3_NEXT = "transformers.models.qwen3_next.modeling_qwen3_next"


@cache
def _published(module: str, name: str) -> Any:
    """Import a published function when it is first called.

    The functions of transformers are wrapped: where the package that they stand in for
    is installed, what is called is its kernel. What is judged here is what they wrap.
    """
    return unwrap(getattr(import_module(module), name))


def _tokens_first(*arrays: Any) -> tuple[Any, ...]:
    """Exchange heads and tokens."""
    return tuple(x.transpose(1, 2) for x in arrays)


def fla_dplr(
    query: Any,
    key: Any,
    value: Any,
    a: Any,
    b: Any,
    log_decay: Any,
    initial_state: Any = None,
) -> Any:
    """`dplr_recurrence`: its alpha and beta are our a and b."""
    function = _published(_DPLR, "dplr_recurrence")
    return function(query, key, value, a, b, log_decay, initial_state)


def fla_dplr_chunkwise(
    query: Any,
    key: Any,
    value: Any,
    a: Any,
    b: Any,
    log_decay: Any,
    initial_state: Any = None,
    chunk_size: int = 32,
) -> Any:
    """`dplr_chunkwise`, for lengths that are multiples of a chunk."""
    function = _published(_DPLR, "dplr_chunkwise")
    return function(
        query, key, value, a, b, log_decay, initial_state, chunk_size=chunk_size
    )


def fla_rwkv7(
    query: Any,
    key: Any,
    value: Any,
    log_decay: Any,
    removal_key: Any,
    removal_rate: Any,
    initial_state: Any = None,
) -> Any:
    """RWKV-7 through `dplr_recurrence`, which is what the package reduces it to."""
    function = _published(_DPLR, "dplr_recurrence")
    b = removal_rate * removal_key
    return function(query, key, value, -removal_key, b, log_decay, initial_state)


def fla_iplr(
    query: Any, key: Any, value: Any, a: Any, b: Any, initial_state: Any = None
) -> Any:
    """`iplr_recurrence`: its alpha and beta are our a and b."""
    function = _published(_IPLR, "iplr_recurrence")
    return function(query, key, value, a, b, initial_state)


def fla_iplr_chunkwise(
    query: Any,
    key: Any,
    value: Any,
    a: Any,
    b: Any,
    initial_state: Any = None,
    chunk_size: int = 32,
) -> Any:
    """`iplr_chunkwise`, for lengths that are multiples of a chunk."""
    function = _published(_IPLR, "iplr_chunkwise")
    return function(query, key, value, a, b, initial_state, chunk_size=chunk_size)


def fla_gated_delta_product(
    query: Any,
    key: Any,
    value: Any,
    log_decay: Any,
    beta: Any,
    scale: float,
    initial_state: Any = None,
) -> Any:
    """`naive_recurrent_gated_delta_product`, told how many steps a token has."""
    function = _published(
        "fla.ops.gated_delta_product.naive", "naive_recurrent_gated_delta_product"
    )
    output, state = function(
        *_tokens_first(query, key, value, log_decay, beta),
        scale,
        initial_state=initial_state,
        output_final_state=True,
        num_householder=key.shape[2] // query.shape[2],
    )
    return output.transpose(1, 2), state


def fla_hgrn(value: Any, log_decay: Any, initial_state: Any = None) -> Any:
    """`naive_recurrent_hgrn` knows no heads: they are folded into its batch."""
    function = _published("fla.ops.hgrn.naive", "naive_recurrent_hgrn")
    folded = (x.flatten(0, 1) for x in (value, log_decay))
    first = None if initial_state is None else initial_state.flatten(0, 1)[:, 0]
    output, state = function(*folded, first, output_final_state=True)
    heads = value.shape[:2]
    return output.unflatten(0, heads), state[:, None].unflatten(0, heads)


def fla_gsa(
    query: Any,
    key: Any,
    value: Any,
    slots: Any,
    log_decay: Any,
    scale: float | None = None,
    initial_state: Any = None,
) -> Any:
    """`naive_recurrent_gsa`: two states, the first of them keys by slots."""
    function = _published("fla.ops.gsa.naive", "naive_recurrent_gsa")
    width, first = key.shape[-1], None
    if initial_state is not None:
        # Its sums are in place, and a part of a tensor is still that tensor.
        of_keys, of_values = initial_state[..., :width], initial_state[..., width:]
        first = (of_keys.transpose(-1, -2), of_values)
    output, (of_keys, of_values) = function(
        *_tokens_first(query, key, value, slots, log_decay),
        scale=scale,
        initial_state=first,
        output_final_state=True,
    )
    memory = import_module("torch").cat((of_keys.transpose(-1, -2), of_values), dim=-1)
    return output.transpose(1, 2), memory


def fla_abc(
    query: Any, key: Any, value: Any, slots: Any, scale: float | None = None
) -> Any:
    """`naive_recurrent_abc` without a state: what it returns cannot be continued."""
    function = _published("fla.ops.abc.naive", "naive_recurrent_abc")
    return function(query, key, value, slots, scale=scale)[0]


def fla_abc_cumsum(query: Any, key: Any, value: Any, slots: Any) -> Any:
    """`naive_cumsum_abc`, whose second result is always None."""
    function = _published("fla.ops.abc.naive", "naive_cumsum_abc")
    return function(query, key, value, slots)[0]


def fla_mesa(
    query: Any,
    key: Any,
    value: Any,
    log_decay: Any,
    beta: Any,
    ridge: Any,
    initial_state: Any = None,
) -> Any:
    """`naive_mesa_net_exact`: a solve for every token."""
    return _mesa("exact", query, key, value, log_decay, beta, ridge, initial_state)


def fla_mesa_conjugate_gradients(
    query: Any,
    key: Any,
    value: Any,
    log_decay: Any,
    beta: Any,
    ridge: Any,
    initial_state: Any = None,
    chunk_size: int = 16,
) -> Any:
    """`naive_mesa_net_CG`: thirty steps of conjugate gradients."""
    return _mesa(
        "CG", query, key, value, log_decay, beta, ridge, initial_state, chunk_size
    )


def _mesa(
    form: str,
    query: Any,
    key: Any,
    value: Any,
    log_decay: Any,
    beta: Any,
    ridge: Any,
    state: Any,
    *chunk_size: int,
) -> Any:
    function = _published("fla.ops.mesa_net.naive", f"naive_mesa_net_{form}")
    width = key.shape[-1]
    first = {}
    if state is not None:
        first = {"h_kk_init": state[..., :width], "h_kv_init": state[..., width:]}
    q, k, v, g, rates = _tokens_first(query, key, value, log_decay, beta)
    heads = ridge.expand(query.shape[1], width)
    output, *states = function(q, k, v, g, heads, rates, *chunk_size, **first)
    return output.transpose(1, 2), import_module("torch").cat(states, dim=-1)


def transformers_gated_delta_recurrent(
    query: Any, key: Any, value: Any, g: Any, beta: Any, initial_state: Any = None
) -> Any:
    """`torch_recurrent_gated_delta_rule` of Qwen3-Next, asked for its state."""
    function = _published(_QWEN3_NEXT, "torch_recurrent_gated_delta_rule")
    output, state = function(
        *_tokens_first(query, key, value, g, beta),
        initial_state=initial_state,
        output_final_state=True,
    )
    return output.transpose(1, 2), state


def transformers_gated_delta_chunk(
    query: Any,
    key: Any,
    value: Any,
    g: Any,
    beta: Any,
    initial_state: Any = None,
    chunk_size: int = 64,
) -> Any:
    """`torch_chunk_gated_delta_rule` of Qwen3-Next, asked for its state."""
    function = _published(_QWEN3_NEXT, "torch_chunk_gated_delta_rule")
    output, state = function(
        *_tokens_first(query, key, value, g, beta),
        chunk_size=chunk_size,
        initial_state=initial_state,
        output_final_state=True,
    )
    return output.transpose(1, 2), state


def transformers_kimi_recurrent(
    query: Any, key: Any, value: Any, g: Any, beta: Any, initial_state: Any = None
) -> Any:
    """`recurrent_kimi_delta_attention`, whose state has no default."""
    function = _published(_KIMI, "recurrent_kimi_delta_attention")
    output, state = function(
        *_tokens_first(query, key, value, g, beta), initial_state, True
    )
    return output.transpose(1, 2), state


def transformers_kimi_chunk(
    query: Any,
    key: Any,
    value: Any,
    g: Any,
    beta: Any,
    initial_state: Any = None,
    chunk_size: int = 64,
) -> Any:
    """`chunk_kimi_delta_attention`, asked for its state."""
    function = _published(_KIMI, "chunk_kimi_delta_attention")
    output, state = function(
        *_tokens_first(query, key, value, g, beta),
        chunk_size=chunk_size,
        initial_state=initial_state,
        output_final_state=True,
    )
    return output.transpose(1, 2), state


def transformers_mamba2(
    query: Any,
    key: Any,
    value: Any,
    log_decay: Any,
    initial_state: Any = None,
    chunk_size: int = 64,
) -> Any:
    """`mamba2_chunk_scan` with a step of one, so that its A is the log-decay itself."""
    function = _published(_MAMBA2, "mamba2_chunk_scan")
    C, B, x, A = _tokens_first(query, key, value, log_decay)  # noqa: N806 - its names
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


def transformers_mamba2_step(
    query: Any, key: Any, value: Any, log_decay: Any, initial_state: Any = None
) -> Any:
    """`mamba2_selective_state_update`, once for every token; it writes to its state."""
    function = _published(_MAMBA2, "mamba2_selective_state_update")
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


def transformers_rwkv4(
    key: Any, value: Any, log_decay: Any, bonus: Any, initial_state: Any = None
) -> Any:
    """`rwkv_linear_attention_cpu`: heads are channels, the decay is ``-exp``.

    Its state is a numerator and a denominator divided by the exponential of a maximum.
    """
    function = _published(
        "transformers.models.rwkv.modeling_rwkv", "rwkv_linear_attention_cpu"
    )
    heads = (value.shape[1], value.shape[-1])
    decay, first = (x.expand(heads).flatten() for x in (log_decay, bonus))
    k, v = (x.transpose(1, 2).flatten(2) for x in (key, value))
    state = None
    if initial_state is not None:
        memory, normalizer = (x.flatten(1) for x in initial_state)
        empty = normalizer.isneginf()
        den = 1.0 - empty.to(memory.dtype)
        state = (memory * den, den, normalizer.masked_fill(empty, -1e38))
    output, (num, den, largest) = function(
        (-decay).log(), first, k, v, state=state, return_state=True
    )
    mean = (num / den.where(den > 0, 1.0)).unflatten(1, heads)[:, :, None]
    normalizer = (den.log() + largest).unflatten(1, heads)
    return output.unflatten(2, heads).transpose(1, 2), (mean, normalizer)


@cache
def _minimax_layer(heads: int, dim: int, layer: int, layers: int) -> Any:
    """Build the layer with everything around its attention taken out."""
    nn = import_module("torch").nn
    name = "transformers.models.minimax"
    config = _published(f"{name}.configuration_minimax", "MiniMaxConfig")(
        hidden_size=3 * heads * dim,
        num_attention_heads=heads,
        head_dim=dim,
        num_hidden_layers=layers,
        layer_types=["linear_attention"] * layers,
        block_size=16,
    )
    module = _published(f"{name}.modeling_minimax", "MiniMaxLightningAttention")
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


def transformers_minimax(
    query: Any, key: Any, value: Any, layer: int = 0, layers: int = 8
) -> Any:
    """MiniMax's lightning attention: retention whose rates are ALiBi's slopes.

    The rate of a head is ``-2^(-8 (head + 1) / heads)``, times a factor of the layer.
    """
    heads, dim = query.shape[1], query.shape[-1]
    built = _minimax_layer(heads, dim, layer, layers).to(query.dtype)
    packed = import_module("torch").cat(_tokens_first(query, key, value), dim=-1)
    output, state = built(packed.flatten(2), None, None)
    return 2 * output.unflatten(2, (heads, dim)).transpose(1, 2), state
