"""Adapters of the reference functions of fla-core.

Each adapter renames arguments, folds heads or packs states; the arithmetic is the
package's. Arrays are ``(B, H, T, D)`` and a state is ``(B, H, K, V)``, whatever the
package has. What can be called as it is has no function here.
"""

from importlib import import_module
from typing import Any

from linkern.adapters.calling import published, tokens_first
from linkern.adapters.preconditioned import head_by_head

__all__ = [
    "dplr",
    "dplr_chunkwise",
    "gsa",
    "hgrn",
    "iplr",
    "iplr_chunkwise",
    "mesa",
    "mesa_conjugate_gradients",
    "momentum_delta_rule",
    "preconditioned",
    "rwkv7",
]

_DPLR = "fla.ops.generalized_delta_rule.dplr.naive"
_IPLR = "fla.ops.generalized_delta_rule.iplr.naive"


def dplr(
    query: Any,
    key: Any,
    value: Any,
    a: Any,
    b: Any,
    log_decay: Any,
    initial_state: Any = None,
) -> Any:
    """`dplr_recurrence`: its alpha and beta are our a and b."""
    function = published(_DPLR, "dplr_recurrence")
    return function(query, key, value, a, b, log_decay, initial_state)


def dplr_chunkwise(
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
    function = published(_DPLR, "dplr_chunkwise")
    return function(
        query, key, value, a, b, log_decay, initial_state, chunk_size=chunk_size
    )


def rwkv7(
    query: Any,
    key: Any,
    value: Any,
    log_decay: Any,
    removal_key: Any,
    removal_rate: Any,
    initial_state: Any = None,
) -> Any:
    """RWKV-7 through `dplr_recurrence`, which is what the package reduces it to."""
    function = published(_DPLR, "dplr_recurrence")
    b = removal_rate * removal_key
    return function(query, key, value, -removal_key, b, log_decay, initial_state)


def iplr(
    query: Any, key: Any, value: Any, a: Any, b: Any, initial_state: Any = None
) -> Any:
    """`iplr_recurrence`: its alpha and beta are our a and b."""
    function = published(_IPLR, "iplr_recurrence")
    return function(query, key, value, a, b, initial_state)


def iplr_chunkwise(
    query: Any,
    key: Any,
    value: Any,
    a: Any,
    b: Any,
    initial_state: Any = None,
    chunk_size: int = 32,
) -> Any:
    """`iplr_chunkwise`, for lengths that are multiples of a chunk."""
    function = published(_IPLR, "iplr_chunkwise")
    return function(query, key, value, a, b, initial_state, chunk_size=chunk_size)


def hgrn(value: Any, log_decay: Any, initial_state: Any = None) -> Any:
    """`naive_recurrent_hgrn` knows no heads: they are folded into its batch."""
    function = published("fla.ops.hgrn.naive", "naive_recurrent_hgrn")
    folded = (x.flatten(0, 1) for x in (value, log_decay))
    first = None if initial_state is None else initial_state.flatten(0, 1)[:, 0]
    output, state = function(*folded, first, output_final_state=True)
    heads = value.shape[:2]
    return output.unflatten(0, heads), state[:, None].unflatten(0, heads)


def gsa(
    query: Any,
    key: Any,
    value: Any,
    slots: Any,
    log_decay: Any,
    scale: float | None = None,
    initial_state: Any = None,
) -> Any:
    """`naive_recurrent_gsa`: two states, the first of them keys by slots."""
    function = published("fla.ops.gsa.naive", "naive_recurrent_gsa")
    width, first = key.shape[-1], None
    if initial_state is not None:
        # Its sums are in place, and a part of a tensor is still that tensor.
        keys, values = initial_state[..., :width], initial_state[..., width:]
        first = (keys.transpose(-1, -2), values)
    output, (keys, values) = function(
        *tokens_first(query, key, value, slots, log_decay),
        scale=scale,
        initial_state=first,
        output_final_state=True,
    )
    memory = import_module("torch").cat((keys.transpose(-1, -2), values), dim=-1)
    return output.transpose(1, 2), memory


def mesa(
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


def mesa_conjugate_gradients(
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
    function = published("fla.ops.mesa_net.naive", f"naive_mesa_net_{form}")
    width = key.shape[-1]
    first = {}
    if state is not None:
        first = {"h_kk_init": state[..., :width], "h_kv_init": state[..., width:]}
    q, k, v, g, rates = tokens_first(query, key, value, log_decay, beta)
    heads = ridge.expand(query.shape[1], width)
    output, *states = function(q, k, v, g, heads, rates, *chunk_size, **first)
    return output.transpose(1, 2), import_module("torch").cat(states, dim=-1)


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
) -> Any:
    """`naive_recurrent_precond_kda`, or `..._gated_delta_rule` without channels."""
    tokens = (query, key, value, log_decay, beta)
    sums = (preconditioner_log_decay, preconditioner_beta)
    heads, form = (center, log_range), "naive.naive_recurrent"
    return head_by_head(form, tokens, sums, heads, initial_state, scale=scale)


def momentum_delta_rule(
    query: Any,
    key: Any,
    value: Any,
    log_decay: Any,
    momentum_log_decay: Any,
    beta: Any,
    momentum_beta: Any,
    scale: float | None = None,
    initial_state: Any = None,
) -> Any:
    """`recurrent_momentum_delta_rule_ref`, whose momentum has the other sign.

    What it erases along is the key times the decay.
    """
    place = "fla.ops.momentum_delta_rule.naive"
    function = published(place, "recurrent_momentum_delta_rule_ref")
    first = {}
    if initial_state is not None:
        memory, momentum = initial_state.chunk(2, dim=-2)
        first = {"initial_S": memory, "initial_M": -momentum}
    tokens = (query, key, value, log_decay, momentum_log_decay, beta, momentum_beta)
    q, k, v, g, mu, share, rate = tokens_first(*tokens)
    output, (memory, momentum) = function(
        q,
        k,
        v,
        g,
        mu,
        g.exp()[..., None] * k,
        share,
        rate,
        scale,
        **first,
        output_final_state=True,
    )
    state = import_module("torch").cat([memory, -momentum], dim=-2)
    return output.transpose(1, 2), state
