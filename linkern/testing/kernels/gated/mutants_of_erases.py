"""Defects of erases and scores: rates, triangular systems, norms, scales."""

from dataclasses import replace
from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import Kernel
from linkern.testing.kernels.gated.assembly import (
    GatedParts,
    assembled,
    forward_substitution,
)
from linkern.testing.kernels.gated.catalogue import enter
from linkern.testing.kernels.gated.correct import normalised
from linkern.testing.kernels.gated.mutants_of_gates import part
from linkern.testing.kernels.gated.rows import Inputs, Rows

__all__: list[str] = []

Array = Any
INTEGERS = ("value_on_integers", "value_on_reals")


def _undecayed(rows: Rows) -> Rows:
    return replace(rows, undecayed=True)


def _decayed(rows: Rows) -> Rows:
    return replace(rows, undecayed=False)


def _skipped_at_edges(rows: Rows) -> Rows:
    """Write the first token of a chunk of 16, but let it take nothing back."""
    rate = rows.rate.copy()
    rate[..., ::16, :] = 0
    return replace(rows, rate=rate)


def _never(rows: Rows) -> Rows:
    return replace(rows, rate=np.zeros_like(rows.rate))


def _exchanged(rows: Rows) -> Rows:
    return replace(rows, erase=rows.rate, rate=rows.erase)


def _without_gate(op: str) -> Kernel:
    """Return a kernel that erases only if there is a gate."""
    right, adds = assembled(op, GatedParts(backward=None)), part(op, rows=_never)

    def kernel(*given: Array, **named: Array) -> Any:
        return (right if named.get("log_decay") is not None else adds)(*given, **named)

    kernel.__signature__ = right.__signature__  # type: ignore[attr-defined]
    return kernel


def _without_last_row(system: Array, known: Array) -> Array:
    """Leave the last row of a full chunk as it was."""
    found = forward_substitution(system, known)
    if known.shape[-2] == GatedParts().chunk:
        found[..., -1, :] = known[..., -1, :]
    return found


def _first_term(system: Array, known: Array) -> Array:
    """Form the inverse as a series that ends too early."""
    return known + system @ known


def _rates_tiled(given: Inputs) -> Inputs:
    """Value head h takes the rate of head h modulo the heads of queries."""
    beta, heads = given.get("beta"), given["key"].shape[1]
    if beta is None or heads == 0:
        return given
    order = np.arange(beta.shape[1]) % heads
    return {**given, "beta": beta[:, order]}


def _rates_clipped(given: Inputs) -> Inputs:
    beta = given.get("beta")
    return given if beta is None else {**given, "beta": np.clip(beta, 0, 1)}


def _rates_of_one(given: Inputs) -> Inputs:
    return {name: x for name, x in given.items() if name != "beta"}


def _rate_not_written(rows: Rows) -> Rows:
    """Let the rate scale what is erased, but not what is written."""
    return replace(rows, key=-rows.erase)


enter(
    "erases_undecayed_state",
    "gated_delta_rule",
    part("gated_delta_rule", rows=_undecayed),
    "#43: fla d1fc1c54: another update rule in its place",
    cause="erases_before_decay",
)
enter(
    "removes_from_decayed_state",
    "rwkv7",
    part("rwkv7", rows=_decayed),
    "#91: fla #351: conventions of RWKV7",
    cause="erases_after_decay",
)
enter(
    "no_erase_without_gate",
    "gated_delta_rule",
    _without_gate("gated_delta_rule"),
    "#44: fla f636f5a1",
    "option_neutrality",
    cause="no_erase_without_gate",
)
enter(
    "never_erases",
    "kda",
    part("kda", rows=_never),
    "#44: fla f636f5a1",
    *INTEGERS,
    cause="no_erase",
)
enter(
    "no_erase_at_chunk_edge",
    "delta_rule",
    part("delta_rule", rows=_skipped_at_edges),
    "#48: fla bb1f9b9c: sub-blocks of the triangular system",
    *INTEGERS,
    cause="erase_lost_at_chunk_edge",
)
enter(
    "last_row_not_substituted",
    "kda",
    part("kda", solve=_without_last_row),
    "#49: fla 370fe304: the end of the substitution",
    *INTEGERS,
)
enter(
    "inverse_cut_short",
    "delta_rule",
    part("delta_rule", solve=_first_term),
    "#16: fla 91d870f8: blocks of the inverse",
    *INTEGERS,
)
enter(
    "low_rank_vectors_exchanged",
    "dplr",
    part("dplr", rows=_exchanged),
    "#92: fla 505809bf: arguments in another order",
    cause="a_and_b_exchanged",
)
enter(
    "rates_of_wrong_heads",
    "gated_delta_rule",
    part("gated_delta_rule", inputs=_rates_tiled),
    "#52: fla 59f3f67e",
    "value_on_reals",
    cause="beta_of_wrong_heads",
    value_groups=True,
)
enter(
    "rates_clipped",
    "delta_rule",
    part("delta_rule", inputs=_rates_clipped),
    "#114: sglang #30860: clamped gates",
    cause="beta_clipped",
)
enter(
    "rates_left_out",
    "gated_delta_rule",
    part("gated_delta_rule", inputs=_rates_of_one),
    "#98: fla d28b3e1c: vectors of beta",
    cause="beta_ignored",
)
enter(
    "rate_not_written",
    "kda",
    part("kda", rows=_rate_not_written),
    "#98: fla d28b3e1c",
    cause="beta_not_on_values",
)
enter(
    "norm_with_epsilon_outside",
    "gated_delta_rule",
    assembled("gated_delta_rule", normalised(1e-2, outside=True)),
    "#90: fla cde25dfd; #136: maxtext #5295",
    l2norm=1e-2,
)
enter(
    "scale_left_out",
    "simple_gla",
    part("simple_gla", scale=lambda *_: 1.0),
    "#60: fla 85992884",
    *INTEGERS,
    cause="other_scale",
)
enter(
    "scale_twice",
    "delta_rule",
    part("delta_rule", scale=lambda scale, _: scale * scale),
    "#60: fla 85992884",
    *INTEGERS,
    cause="other_scale",
)
