"""Defects of erases and scores: rates, triangular systems, norms, scales."""

from dataclasses import replace
from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import (
    CHUNK,
    Array,
    Inputs,
    Kernel,
    Terms,
    forward_substitution,
    recurrence,
    unit_rows,
)
from linkern.testing.kernels.mutants.catalogue import enter

__all__: list[str] = []

INTEGERS = ("value_on_integers", "value_on_reals")


def _early(terms: Terms) -> Terms:
    return replace(terms, early_erase=True)


def _late(terms: Terms) -> Terms:
    return replace(terms, early_erase=False)


def _skipped_at_edges(terms: Terms) -> Terms:
    """Let the first token of a chunk of 16 write, but not erase."""
    rate = terms.rate.copy()
    rate[..., ::16, :] = 0
    return replace(terms, rate=rate)


def _never(terms: Terms) -> Terms:
    return replace(terms, rate=np.zeros_like(terms.rate))


def _exchanged(terms: Terms) -> Terms:
    return replace(terms, erase=terms.rate, rate=terms.erase)


def _without_gate(op: str) -> Kernel:
    """Return a kernel that erases only if there is a gate."""
    right, adds = recurrence(op), recurrence(op, terms=_never)

    def kernel(*inputs: Array, **named: Array) -> Any:
        return (right if named.get("log_decay") is not None else adds)(*inputs, **named)

    kernel.__signature__ = right.__signature__  # type: ignore[attr-defined]
    return kernel


def _without_last_row(system: Array, known: Array) -> Array:
    """Leave the last row of a full chunk unsolved."""
    solution = forward_substitution(system, known)
    if known.shape[-2] == CHUNK:
        solution[..., -1, :] = known[..., -1, :]
    return solution


def _first_term(system: Array, known: Array) -> Array:
    """Cut the series of the inverse after two terms."""
    return known + system @ known


def _rates_tiled(call: Inputs) -> Inputs:
    """Give value head h the rate of head h modulo the number of query heads."""
    beta, heads = call.get("beta"), call["key"].shape[1]
    if beta is None or heads == 0:
        return call
    order = np.arange(beta.shape[1]) % heads
    return {**call, "beta": beta[:, order]}


def _rates_clipped(call: Inputs) -> Inputs:
    beta = call.get("beta")
    return call if beta is None else {**call, "beta": np.clip(beta, 0, 1)}


def _rates_of_one(call: Inputs) -> Inputs:
    return {name: x for name, x in call.items() if name != "beta"}


def _rate_not_written(terms: Terms) -> Terms:
    """Scale what is erased by the rate, but not what is written."""
    return replace(terms, key=-terms.erase)


enter(
    "erases_undecayed_state",
    recurrence("gated_delta_rule", terms=_early),
    "#43: fla d1fc1c54: another update rule in its place",
    op="gated_delta_rule",
)
enter(
    "removes_from_decayed_state",
    recurrence("rwkv7", terms=_late),
    "#91: fla #351: conventions of RWKV7",
    op="rwkv7",
)
enter(
    "no_erase_without_gate",
    _without_gate("gated_delta_rule"),
    "#44: fla f636f5a1",
    "option_neutrality",
    op="gated_delta_rule",
)
enter(
    "never_erases",
    recurrence("kda", terms=_never),
    "#44: fla f636f5a1",
    *INTEGERS,
    op="kda",
)
enter(
    "no_erase_at_chunk_edge",
    recurrence("delta_rule", terms=_skipped_at_edges),
    "#48: fla bb1f9b9c: sub-blocks of the triangular system",
    *INTEGERS,
    op="delta_rule",
)
enter(
    "last_row_not_substituted",
    recurrence("kda", solve=_without_last_row),
    "#49: fla 370fe304: the end of the substitution",
    *INTEGERS,
    op="kda",
)
enter(
    "inverse_cut_short",
    recurrence("delta_rule", solve=_first_term),
    "#16: fla 91d870f8: blocks of the inverse",
    *INTEGERS,
    op="delta_rule",
)
enter(
    "low_rank_vectors_exchanged",
    recurrence("dplr", terms=_exchanged),
    "#92: fla 505809bf: arguments in another order",
    op="dplr",
)
enter(
    "rates_of_wrong_heads",
    recurrence("gated_delta_rule", inputs=_rates_tiled),
    "#52: fla 59f3f67e",
    op="gated_delta_rule",
    contract={"value_groups": True},
)
enter(
    "rates_clipped",
    recurrence("delta_rule", inputs=_rates_clipped),
    "#114: sglang #30860: clamped gates",
    op="delta_rule",
)
enter(
    "rates_left_out",
    recurrence("gated_delta_rule", inputs=_rates_of_one),
    "#98: fla d28b3e1c: vectors of beta",
    op="gated_delta_rule",
)
enter(
    "rate_not_written",
    recurrence("kda", terms=_rate_not_written),
    "#98: fla d28b3e1c",
    op="kda",
)
enter(
    "norm_with_epsilon_outside",
    recurrence("gated_delta_rule", inputs=unit_rows(1e-2, outside=True)),
    "#90: fla cde25dfd; #136: maxtext #5295",
    op="gated_delta_rule",
    contract={"l2norm": 1e-2},
)
enter(
    "scale_left_out",
    recurrence("simple_gla", scale=lambda *_: 1.0),
    "#60: fla 85992884",
    *INTEGERS,
    op="simple_gla",
)
enter(
    "scale_twice",
    recurrence("delta_rule", scale=lambda scale, _: scale * scale),
    "#60: fla 85992884",
    *INTEGERS,
    op="delta_rule",
)
