"""Defects of gates: decays that overflow, are lost, or are another head's."""

from dataclasses import replace
from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import Kernel
from linkern.testing.kernels.gated.assembly import (
    GatedParts,
    assembled,
    decays_between,
)
from linkern.testing.kernels.gated.catalogue import enter
from linkern.testing.kernels.gated.rows import Inputs, Rows
from linkern.testing.kernels.gated.slots import SlotParts, slotted
from linkern.testing.kernels.mutants.arithmetic import rounded_to

__all__: list[str] = []

Array = Any
EXTREME = ("decay_extremes", "value_on_reals")


def part(op: str, **replaced: Any) -> Kernel:
    """Return the right kernel with parts exchanged."""
    return assembled(op, replace(GatedParts(backward=None), **replaced))


def decays_as(change: Any) -> Any:
    """Return a change of the inputs that changes the log-decays, if there are any."""

    def inputs(given: Inputs) -> Inputs:
        g = given.get("log_decay")
        return given if g is None else {**given, "log_decay": change(g)}

    return inputs


def _sums(g: Array) -> Array:
    return np.cumsum(g, axis=-2)


def _before_the_mask(g: Array) -> tuple[Array, Array]:
    """Exponentials of all differences; those of the future are masked afterwards."""
    total = _sums(g)
    with np.errstate(all="ignore"):
        decays = np.exp(total[..., :, None, :] - total[..., None, :, :])
        return np.tri(g.shape[-2])[..., None].astype(g.dtype) * decays, np.exp(total)


def _unmasked(g: Array) -> tuple[Array, Array]:
    """Weights of the next token are left as they are."""
    decays, since = decays_between(g)
    ahead = np.eye(g.shape[-2], k=1, dtype=g.dtype)[..., None]
    return decays + ahead, since


def _divided_out(g: Array) -> tuple[Array, Array]:
    """Divide by the decay up to the key, of which nothing may be left."""
    total = _sums(g)
    with np.errstate(all="ignore"):
        ratio = np.exp(total)[..., :, None, :] * np.exp(-total)[..., None, :, :]
    mask = np.tri(g.shape[-2], dtype=bool)[..., None]
    return np.where(mask, ratio, 0), np.exp(total)


def _tail_unmasked(g: Array) -> tuple[Array, Array]:
    """Rows past the end have a gate of zero: what they undo becomes infinite."""
    decays, since = decays_between(g)
    if 1 < g.shape[-2] < GatedParts().chunk:
        with np.errstate(all="ignore"):
            decays = decays + 0 * np.exp(-_sums(g))[..., None, :, :]
    return decays, since


def _narrow_sums(g: Array) -> tuple[Array, Array]:
    """Form sums of gates in bfloat16, and their differences."""
    total = rounded_to(8)(_sums(g))
    with np.errstate(all="ignore"):
        decays = np.exp(np.minimum(total[..., :, None, :] - total[..., None, :, :], 0))
    mask = np.tri(g.shape[-2], dtype=bool)[..., None]
    return np.where(mask, decays, 0), np.exp(total)


def _first_head(g: Array) -> Array:
    return np.broadcast_to(g[:, :1], g.shape)


def _after_the_write(rows: Rows) -> Rows:
    """Decay what a token writes with the rest."""
    return replace(rows, key=np.exp(rows.log_decay) * rows.key)


def _after_the_read(rows: Rows) -> Rows:
    """Decay by the gate of the token before."""
    late = np.roll(rows.log_decay, 1, axis=-2)
    late[..., :1, :] = 0
    return replace(rows, log_decay=late)


def _edges_open(rows: Rows) -> Rows:
    """Let the first token of a chunk of 16 forget nothing."""
    g = rows.log_decay.copy()
    g[..., 16::16, :] = 0
    return replace(rows, log_decay=g)


def _missing_is_half(given: Inputs) -> Inputs:
    value = given["value"]
    half = np.full(value.shape[:-1], -0.5, value.dtype)
    return given if "log_decay" in given else {**given, "log_decay": half}


def _at_every_step(rows: Rows) -> Rows:
    """All micro-steps of a token decay the memory."""
    g = np.repeat(rows.log_decay[..., :: rows.each, :], rows.each, axis=-2)
    return replace(rows, log_decay=g)


def _reads_after(rows: Rows) -> Rows:
    """Read the memory after the write, and leave out the bonus."""
    return replace(rows, before=False, bonus=None)


def _first_bonus(given: Inputs) -> Inputs:
    bonus = given.get("bonus")
    if bonus is None:
        return given
    return {**given, "bonus": np.broadcast_to(bonus[:1], bonus.shape)}


enter(
    "exp_before_mask",
    "gated_delta_rule",
    part("gated_delta_rule", decays=_before_the_mask),
    "#33: fla 7d808a33",
    *EXTREME,
)
enter(
    "mask_by_multiplication",
    "dplr",
    part("dplr", decays=_before_the_mask),
    "#32: fla 6cc3736b",
    *EXTREME,
)
enter(
    "decays_divided_out", "gla", part("gla", decays=_divided_out), "#30: fla 458c0186"
)
enter(
    "tail_rows_with_zero_gate",
    "gated_delta_rule",
    part("gated_delta_rule", decays=_tail_unmasked),
    "#16: fla 91d870f8",
    *EXTREME,
)
enter(
    "future_pairs_in_chunk",
    "simple_gla",
    part("simple_gla", decays=_unmasked),
    "#124: tilelang-ascend #1460; #121: attention-gym #337",
    "causality",
    "value_on_integers",
)
enter(
    "gate_sums_in_bfloat16",
    "gla",
    part("gla", decays=_narrow_sums),
    "#81: fla 998de589",
)
enter(
    "carried_state_not_decayed",
    "gla",
    part("gla", since=np.ones_like),
    "#57: fla 9d148e32",
)
enter(
    "edge_of_chunk_not_decayed",
    "kda",
    part("kda", rows=_edges_open),
    "#110: vllm #23279: decays counted from chunk starts",
    cause="decay_lost_at_chunk_edge",
)
enter(
    "gates_of_first_head",
    "kda",
    part("kda", inputs=decays_as(_first_head)),
    "#17: fla d38ed8b5",
    "value_on_reals",
    "heads_independent",
    cause="gates_of_first_head",
)
enter(
    "gates_to_base_two",
    "kda",
    part("kda", inputs=decays_as(lambda g: g * g.dtype.type(np.log(2)))),
    "#114: sglang #30860",
    cause="gates_to_base_2",
)
enter(
    "gates_scaled_for_base_two",
    "simple_gla",
    part("simple_gla", inputs=decays_as(lambda g: g / g.dtype.type(np.log(2)))),
    "#114: sglang #30860: exp of a gate that was made for exp2",
    cause="gates_from_base_2",
)
enter(
    "gates_clamped",
    "gated_delta_rule",
    part(
        "gated_delta_rule", inputs=decays_as(lambda g: np.maximum(g, g.dtype.type(-5)))
    ),
    "#120: cudnn-frontend #1017: a gate bound of -5",
    "value_on_reals",
    "decay_extremes",
    cause="gates_clamped",
)
enter(
    "decays_left_out",
    "simple_gla",
    part("simple_gla", inputs=decays_as(np.zeros_like)),
    "#58: fla 6315d0ba: the decay of a branch that is not taken",
    cause="no_decay",
)
enter(
    "gate_after_write",
    "gla",
    part("gla", rows=_after_the_write),
    "#31: fla 0c1c0b65: exclusive and inclusive sums exchanged",
    cause="decay_after_write",
)
enter(
    "gate_of_token_before",
    "simple_gla",
    part("simple_gla", rows=_after_the_read),
    "#57: fla 9d148e32: decays off by one",
    "value_on_reals",
    cause="gates_of_token_before",
)
enter(
    "missing_gate_is_half",
    "gated_delta_rule",
    part("gated_delta_rule", inputs=_missing_is_half),
    "#12: fla 23da0a15: what a gate of None leaves undefined",
    "option_neutrality",
    cause="missing_gate_not_neutral",
)
enter(
    "decays_at_every_micro_step",
    "gated_delta_product",
    part("gated_delta_product", rows=_at_every_step),
    "#66: fla 01f02517, #51: fla 769035e9: sizes of steps for those of tokens",
    cause="decay_at_every_micro_step",
)
enter(
    "reads_after_write",
    "rwkv6",
    part("rwkv6", rows=_reads_after),
    "#31: fla 0c1c0b65",
    cause="bonus_read_after",
)
enter(
    "bonus_of_first_head",
    "rwkv6",
    part("rwkv6", inputs=_first_bonus),
    "#4: fla 40334f1c: strides that forget the heads",
    cause="bonus_of_first_head",
)
enter(
    "slots_of_values_not_decayed",
    "gsa",
    slotted(SlotParts(decays_of_values=np.ones_like)),
    "#26: fla 3a904f02: gates of one pass of two",
)
