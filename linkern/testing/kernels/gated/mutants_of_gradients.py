"""Defects of the gradients of gates, rates and states: the forward pass is right."""

from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import Kernel
from linkern.testing.kernels.gated.assembly import GatedParts, assembled
from linkern.testing.kernels.gated.backward import GatedBackward
from linkern.testing.kernels.gated.catalogue import enter
from linkern.testing.kernels.gated.rows import Inputs

__all__: list[str] = []

Array = Any


def _backward(op: str, **replaced: Any) -> Kernel:
    return assembled(op, GatedParts(backward=GatedBackward(**replaced)))


def _by_subtraction(inputs: Inputs, found: Inputs) -> Inputs:
    """Form sums from the end as the total, in blocks, less sums from the start."""
    terms = inputs["query"] * found["query"] - inputs["key"] * found["key"]
    total = terms[..., ::-1, :].sum(-2, keepdims=True)
    return {**found, "log_decay": total - np.cumsum(terms, axis=-2) + terms}


def _over_heads(inputs: Inputs, found: Inputs) -> Inputs:
    del inputs
    g = found["log_decay"]
    return {**found, "log_decay": np.broadcast_to(g.sum(1, keepdims=True), g.shape)}


def _of_first_batch(inputs: Inputs, found: Inputs) -> Inputs:
    del inputs
    g = found["log_decay"]
    return {**found, "log_decay": np.repeat(g[:1], g.shape[0], axis=0)}


def _of_last_tile(inputs: Inputs, found: Inputs) -> Inputs:
    """Let the last half of the value channels overwrite what the first found."""
    half = inputs["value"].shape[-1] // 2
    lost = (inputs["value"] * found["value"])[..., :half].sum(-1)
    return {**found, "beta": (found["beta"] - lost).astype(lost.dtype)}


def _without_bonus_of_batch(inputs: Inputs, found: Inputs) -> Inputs:
    return {**found, "bonus": found["bonus"] / max(inputs["value"].shape[0], 1)}


def _not_decayed(of_memory: Array, later: Array, reach: Array) -> Array:
    """Leave out the decay up to the end of the chunk of what comes from later."""
    return of_memory + (1 - reach) * later


def _usual(scale: float, key_dim: int) -> float:
    del scale
    return float(key_dim**-0.5)


enter(
    "gradient_of_gate_by_subtraction",
    "gla",
    _backward("gla", given=_by_subtraction),
    "#2: fla 3e432dec",
    "gradient_causality",
)
enter(
    "gradient_of_gate_over_heads",
    "simple_gla",
    _backward("simple_gla", given=_over_heads),
    "#37: fla 31293264",
    "gradient_value",
    cause="gradient_summed_over_heads",
)
enter(
    "gradient_of_gate_of_first_batch",
    "gated_delta_rule",
    _backward("gated_delta_rule", given=_of_first_batch),
    "#119: unsloth-zoo #776",
    "gradient_value",
    cause="gradient_of_first_batch",
)
enter(
    "gradient_of_rate_of_last_tile",
    "delta_rule",
    _backward("delta_rule", given=_of_last_tile),
    "#97: fla 574eedb7",
    "gradient_value",
)
enter(
    "gradient_of_bonus_averaged",
    "rwkv6",
    _backward("rwkv6", given=_without_bonus_of_batch),
    "#78: fla 31290d15: not summed over the batch",
    "gradient_value",
    cause="gradient_averaged_over_batch",
)
enter(
    "value_gradient_without_decay",
    "simple_gla",
    _backward("simple_gla", seen_by_value=_not_decayed),
    "#59: fla f238b867",
    "gradient_value",
    "time_reversal_adjoint",
)
enter(
    "scale_ignored_backwards",
    "simple_gla",
    assembled(
        "simple_gla",
        GatedParts(default_scale=0.5, backward=GatedBackward(scale=_usual)),
    ),
    "#62: fla 332e877d",
    "gradient_value",
    cause="gradient_with_other_scale",
    scale=0.5,
)
enter(
    "gradient_of_initial_state_missing",
    "kda",
    _backward("kda", of_state=np.zeros_like),
    "#39: fla da1970a6",
    "gradient_of_state",
    cause="gradient_of_state_lost",
)
enter(
    "gradient_of_last_state_ignored",
    "gla",
    _backward("gla", final=False),
    "#40: fla 0a2b34f6",
    "gradient_of_state",
    cause="gradient_of_state_lost",
)
