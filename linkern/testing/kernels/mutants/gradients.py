"""Defects of the gradients; the forward pass is right."""

from collections.abc import Callable
from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import (
    Array,
    Backward,
    Inputs,
    Kernel,
    Parts,
    RecurrenceBackward,
    recurrence,
    rounded_to,
    stateful,
)
from linkern.testing.kernels.mutants.catalogue import enter
from linkern.testing.kernels.mutants.structure import edge

__all__: list[str] = []


def _with_vjp(change: Callable[..., Any]) -> Kernel:
    """Return a correct kernel whose gradients are passed through `change`."""
    right = stateful(Parts())

    def kernel(
        query: Array, key: Array, value: Array, initial_state: Any = None
    ) -> Any:
        return right(query, key, value, initial_state)

    def vjp(query: Array, key: Array, value: Array, output_cotangent: Array) -> Any:
        gradients = right.vjp(query, key, value, output_cotangent)  # type: ignore[attr-defined]
        return change(*gradients[:3])

    kernel.vjp = vjp  # type: ignore[attr-defined]
    return kernel


def _mixes_heads(query: Array, key: Array, value: Array) -> Any:
    if key.ndim > 2 and key.shape[-3] > 1:
        key = np.repeat(key.mean(-3, keepdims=True), key.shape[-3], axis=-3)
    return query, key.astype(query.dtype), value


def _swaps(query: Array, key: Array, value: Array) -> Any:
    return key, query, value


def _loses_first_token(query: Array, key: Array, value: Array) -> Any:
    value[..., :1, :] = 0
    return query, key, value


def _by_subtraction(gradients: Inputs, inputs: Inputs) -> Inputs:
    """Form reversed sums as the total less the sums from the start."""
    terms = inputs["query"] * gradients["query"] - inputs["key"] * gradients["key"]
    total = terms[..., ::-1, :].sum(-2, keepdims=True)
    return {**gradients, "log_decay": total - np.cumsum(terms, axis=-2) + terms}


def _over_heads(gradients: Inputs, inputs: Inputs) -> Inputs:
    del inputs
    g = gradients["log_decay"]
    return {**gradients, "log_decay": np.broadcast_to(g.sum(1, keepdims=True), g.shape)}


def _of_first_batch(gradients: Inputs, inputs: Inputs) -> Inputs:
    del inputs
    g = gradients["log_decay"]
    return {**gradients, "log_decay": np.repeat(g[:1], g.shape[0], axis=0)}


def _of_last_tile(gradients: Inputs, inputs: Inputs) -> Inputs:
    """Leave out the contribution of the first half of the value channels."""
    half = inputs["value"].shape[-1] // 2
    lost = (inputs["value"] * gradients["value"])[..., :half].sum(-1)
    return {**gradients, "beta": (gradients["beta"] - lost).astype(lost.dtype)}


def _without_bonus_of_batch(gradients: Inputs, inputs: Inputs) -> Inputs:
    return {**gradients, "bonus": gradients["bonus"] / max(inputs["value"].shape[0], 1)}


def _not_decayed(d_state: Array, later: Array, decay: Array) -> Array:
    """Leave out the decay between a token and the end of its chunk."""
    return d_state + (1 - decay) * later


def _usual(scale: float, key_dim: int) -> float:
    del scale
    return float(key_dim**-0.5)


enter(
    "key_gradient_without_normalizer",
    stateful(Parts(backward=Backward(key_divisor=0.0))),
    "fla #875: dk",
    "gradient_identities",
)
enter(
    "query_gradient_without_normalizer",
    stateful(Parts(backward=Backward(query_divisor=0.0))),
    "fla #875",
    "gradient_identities",
)
enter(
    "value_gradient_without_diagonal",
    stateful(Parts(backward=Backward(mask=lambda s: np.tril(s, -1)))),
    "fla f238b867: dv misses a term",
    "gradient_value",
)
enter(
    "query_lost_at_edge_backwards",
    stateful(Parts(backward=Backward(counted=edge(0)))),
    "fla 9d148e32",
    "gradient_value",
)
enter(
    "gradient_of_state_in_bfloat16",
    stateful(Parts(backward=Backward(carried=lambda x: rounded_to(8)(np.asarray(x))))),
    "dS carried in the dtype of the inputs",
    "gradient_on_random_reals",
)
enter(
    "output_saved_in_bfloat16",
    stateful(Parts(backward=Backward(saved=rounded_to(8)))),
    "delta formed from a stored output",
    "gradient_on_random_reals",
    harmless_in=("bfloat16",),
)
enter(
    "gradient_ignores_feature_map",
    stateful(Parts(backward=Backward(slope=np.ones_like))),
    "gradients with respect to features, returned as those of inputs",
    "gradient_value",
)
enter(
    "gradient_of_final_state_ignored",
    stateful(Parts(backward=Backward(final=False))),
    "fla 0a2b34f6",
    "gradient_of_state",
)
enter(
    "gradient_mixes_heads",
    _with_vjp(_mixes_heads),
    "fla 31293264, unsloth-zoo #776",
    "gradient_value",
)
enter(
    "gradients_swapped",
    _with_vjp(_swaps),
    "fla 505809bf: wrong arguments",
    "gradient_value",
)
enter(
    "gradient_of_first_token_lost",
    _with_vjp(_loses_first_token),
    "fla #863",
    "gradient_value",
)
enter(
    "gradient_of_gate_by_subtraction",
    recurrence("gla", backward=RecurrenceBackward(gradients=_by_subtraction)),
    "#2: fla 3e432dec",
    "gradient_causality",
    op="gla",
)
enter(
    "gradient_of_gate_over_heads",
    recurrence("simple_gla", backward=RecurrenceBackward(gradients=_over_heads)),
    "#37: fla 31293264",
    "gradient_value",
    op="simple_gla",
)
enter(
    "gradient_of_gate_of_first_batch",
    recurrence(
        "gated_delta_rule", backward=RecurrenceBackward(gradients=_of_first_batch)
    ),
    "#119: unsloth-zoo #776",
    "gradient_value",
    op="gated_delta_rule",
)
enter(
    "gradient_of_rate_of_last_tile",
    recurrence("delta_rule", backward=RecurrenceBackward(gradients=_of_last_tile)),
    "#97: fla 574eedb7",
    "gradient_value",
    op="delta_rule",
)
enter(
    "gradient_of_bonus_averaged",
    recurrence("rwkv6", backward=RecurrenceBackward(gradients=_without_bonus_of_batch)),
    "#78: fla 31290d15: not summed over the batch",
    "gradient_value",
    op="rwkv6",
)
enter(
    "value_gradient_without_decay",
    recurrence("simple_gla", backward=RecurrenceBackward(value_source=_not_decayed)),
    "#59: fla f238b867",
    "gradient_value",
    "time_reversal_adjoint",
    op="simple_gla",
)
enter(
    "scale_ignored_backwards",
    recurrence(
        "simple_gla", default_scale=0.5, backward=RecurrenceBackward(scale=_usual)
    ),
    "#62: fla 332e877d",
    "gradient_value",
    op="simple_gla",
    contract={"scale": 0.5},
)
enter(
    "gradient_of_initial_state_missing",
    recurrence("kda", backward=RecurrenceBackward(initial=np.zeros_like)),
    "#39: fla da1970a6",
    "gradient_of_state",
    op="kda",
)
enter(
    "gradient_of_last_state_ignored",
    recurrence("gla", backward=RecurrenceBackward(final=False)),
    "#40: fla 0a2b34f6",
    "gradient_of_state",
    op="gla",
)
