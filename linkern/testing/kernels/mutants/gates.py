"""Defects of decays: some overflow, some are lost, some belong to another head."""

from dataclasses import replace

import numpy as np

from linkern.testing.kernels.assembly import (
    CHUNK,
    Array,
    Change,
    Inputs,
    Terms,
    decays_between,
    recurrence,
    rounded_to,
    slot_attention,
)
from linkern.testing.kernels.mutants.catalogue import enter

__all__: list[str] = []

EXTREME = ("decay_extremes", "value_on_reals")


def _of_decays(change: Change) -> Change:
    """Return a change of the inputs that changes log-decays, if there are any."""

    def inputs(call: Inputs) -> Inputs:
        g = call.get("log_decay")
        return call if g is None else {**call, "log_decay": change(g)}

    return inputs


def _sums(g: Array) -> Array:
    return np.cumsum(g, axis=-2)


def _before_the_mask(g: Array) -> tuple[Array, Array]:
    """Exponentiate all differences of sums, and mask the future afterwards."""
    total = _sums(g)
    with np.errstate(all="ignore"):
        decays = np.exp(total[..., :, None, :] - total[..., None, :, :])
        return np.tri(g.shape[-2])[..., None].astype(g.dtype) * decays, np.exp(total)


def _unmasked(g: Array) -> tuple[Array, Array]:
    """Leave the next token unmasked."""
    decays, since = decays_between(g)
    ahead = np.eye(g.shape[-2], k=1, dtype=g.dtype)[..., None]
    return decays + ahead, since


def _divided_out(g: Array) -> tuple[Array, Array]:
    """Divide by the decay up to the key, which may have underflowed."""
    total = _sums(g)
    with np.errstate(all="ignore"):
        ratio = np.exp(total)[..., :, None, :] * np.exp(-total)[..., None, :, :]
    mask = np.tri(g.shape[-2], dtype=bool)[..., None]
    return np.where(mask, ratio, 0), np.exp(total)


def _tail_unmasked(g: Array) -> tuple[Array, Array]:
    """Give rows past the end a gate of zero: undoing the decay becomes infinite."""
    decays, since = decays_between(g)
    if 1 < g.shape[-2] < CHUNK:
        with np.errstate(all="ignore"):
            decays = decays + 0 * np.exp(-_sums(g))[..., None, :, :]
    return decays, since


def _narrow_sums(g: Array) -> tuple[Array, Array]:
    """Sum log-decays in bfloat16, and subtract."""
    total = rounded_to(8)(_sums(g))
    with np.errstate(all="ignore"):
        decays = np.exp(np.minimum(total[..., :, None, :] - total[..., None, :, :], 0))
    mask = np.tri(g.shape[-2], dtype=bool)[..., None]
    return np.where(mask, decays, 0), np.exp(total)


def _first_head(g: Array) -> Array:
    return np.broadcast_to(g[:, :1], g.shape)


def _after_the_write(terms: Terms) -> Terms:
    """Decay the state after the write instead of before."""
    return replace(terms, key=np.exp(terms.log_decay) * terms.key)


def _after_the_read(terms: Terms) -> Terms:
    """Decay by the gate of the token before."""
    late = np.roll(terms.log_decay, 1, axis=-2)
    late[..., :1, :] = 0
    return replace(terms, log_decay=late)


def _edges_open(terms: Terms) -> Terms:
    """Leave out the decay of the first token of a chunk of 16."""
    g = terms.log_decay.copy()
    g[..., 16::16, :] = 0
    return replace(terms, log_decay=g)


def _missing_is_half(call: Inputs) -> Inputs:
    value = call["value"]
    half = np.full(value.shape[:-1], -0.5, value.dtype)
    return call if "log_decay" in call else {**call, "log_decay": half}


def _at_every_step(terms: Terms) -> Terms:
    """Decay the state at every step of a token."""
    g = np.repeat(terms.log_decay[..., :: terms.steps, :], terms.steps, axis=-2)
    return replace(terms, log_decay=g)


def _reads_after(terms: Terms) -> Terms:
    """Read the state after the write, and leave out the bonus."""
    return replace(terms, early_read=False, bonus=None)


def _first_bonus(call: Inputs) -> Inputs:
    bonus = call.get("bonus")
    if bonus is None:
        return call
    return {**call, "bonus": np.broadcast_to(bonus[:1], bonus.shape)}


enter(
    "exp_before_mask",
    recurrence("gated_delta_rule", decays=_before_the_mask),
    "#33: fla 7d808a33",
    *EXTREME,
    op="gated_delta_rule",
)
enter(
    "mask_by_multiplication",
    recurrence("dplr", decays=_before_the_mask),
    "#32: fla 6cc3736b",
    *EXTREME,
    op="dplr",
)
enter(
    "decays_divided_out",
    recurrence("gla", decays=_divided_out),
    "#30: fla 458c0186",
    op="gla",
)
enter(
    "tail_rows_with_zero_gate",
    recurrence("gated_delta_rule", decays=_tail_unmasked),
    "#16: fla 91d870f8",
    *EXTREME,
    op="gated_delta_rule",
)
enter(
    "future_pairs_in_chunk",
    recurrence("simple_gla", decays=_unmasked),
    "#124: tilelang-ascend #1460; #121: attention-gym #337",
    "causality",
    "value_on_integers",
    op="simple_gla",
)
enter(
    "gate_sums_in_bfloat16",
    recurrence("gla", decays=_narrow_sums),
    "#81: fla 998de589",
    op="gla",
)
enter(
    "carried_state_not_decayed",
    recurrence("gla", since=np.ones_like),
    "#57: fla 9d148e32",
    op="gla",
)
enter(
    "edge_of_chunk_not_decayed",
    recurrence("kda", terms=_edges_open),
    "#110: vllm #23279: decays counted from chunk starts",
    op="kda",
)
enter(
    "gates_of_first_head",
    recurrence("kda", inputs=_of_decays(_first_head)),
    "#17: fla d38ed8b5",
    "value_on_reals",
    "heads_independent",
    op="kda",
)
enter(
    "gates_to_base_two",
    recurrence("kda", inputs=_of_decays(lambda g: g * g.dtype.type(np.log(2)))),
    "#114: sglang #30860",
    op="kda",
)
enter(
    "gates_scaled_for_base_two",
    recurrence("simple_gla", inputs=_of_decays(lambda g: g / g.dtype.type(np.log(2)))),
    "#114: sglang #30860: exp of a gate that was made for exp2",
    op="simple_gla",
)
enter(
    "gates_clamped",
    recurrence(
        "gated_delta_rule", inputs=_of_decays(lambda g: np.maximum(g, g.dtype.type(-5)))
    ),
    "#120: cudnn-frontend #1017: a gate bound of -5",
    "value_on_reals",
    "decay_extremes",
    op="gated_delta_rule",
)
enter(
    "decays_left_out",
    recurrence("simple_gla", inputs=_of_decays(np.zeros_like)),
    "#58: fla 6315d0ba: the decay of a branch that is not taken",
    op="simple_gla",
)
enter(
    "gate_after_write",
    recurrence("gla", terms=_after_the_write),
    "#31: fla 0c1c0b65: exclusive and inclusive sums exchanged",
    op="gla",
)
enter(
    "gate_of_token_before",
    recurrence("simple_gla", terms=_after_the_read),
    "#57: fla 9d148e32: decays off by one",
    op="simple_gla",
)
enter(
    "missing_gate_is_half",
    recurrence("gated_delta_rule", inputs=_missing_is_half),
    "#12: fla 23da0a15: what a gate of None leaves undefined",
    "option_neutrality",
    op="gated_delta_rule",
)
enter(
    "decays_at_every_micro_step",
    recurrence("gated_delta_product", terms=_at_every_step),
    "#66: fla 01f02517, #51: fla 769035e9: sizes of steps for those of tokens",
    op="gated_delta_product",
)
enter(
    "reads_after_write",
    recurrence("rwkv6", terms=_reads_after),
    "#31: fla 0c1c0b65",
    op="rwkv6",
)
enter(
    "bonus_of_first_head",
    recurrence("rwkv6", inputs=_first_bonus),
    "#4: fla 40334f1c: strides that forget the heads",
    op="rwkv6",
)
enter(
    "slots_of_values_not_decayed",
    slot_attention(value_decays=np.ones_like),
    "#26: fla 3a904f02: gates of one pass of two",
    op="gsa",
)
