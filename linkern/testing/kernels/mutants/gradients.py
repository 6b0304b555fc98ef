"""Defects of the gradients: the forward pass is right."""

from collections.abc import Callable
from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import Backward, Kernel, Parts, stateful
from linkern.testing.kernels.mutants.arithmetic import rounded_to
from linkern.testing.kernels.mutants.catalogue import enter
from linkern.testing.kernels.mutants.structure import edge

__all__: list[str] = []

Array = Any


def _backward(**replaced: Any) -> Kernel:
    return stateful(Parts(backward=Backward(**replaced)))


def _with_vjp(change: Callable[..., Any]) -> Kernel:
    """Return a right kernel whose gradients are passed through `change`."""
    right = stateful(Parts())

    def kernel(
        query: Array, key: Array, value: Array, initial_state: Any = None
    ) -> Any:
        return right(query, key, value, initial_state)

    def vjp(query: Array, key: Array, value: Array, output_cotangent: Array) -> Any:
        found = right.vjp(query, key, value, output_cotangent)  # type: ignore[attr-defined]
        return change(*found[:3])

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


enter(
    "key_gradient_without_normalizer",
    _backward(key_divisor=0.0),
    "fla #875: dk",
    law="gradient_identities",
)
enter(
    "query_gradient_without_normalizer",
    _backward(query_divisor=0.0),
    "fla #875",
    law="gradient_identities",
)
enter(
    "value_gradient_without_diagonal",
    _backward(mask=lambda s: np.tril(s, -1)),
    "fla f238b867: dv misses a term",
    law="gradient_value",
)
enter(
    "query_lost_at_edge_backwards",
    _backward(counted=edge(0)),
    "fla 9d148e32",
    law="gradient_value",
)
enter(
    "gradient_of_state_in_bfloat16",
    _backward(carried=lambda x: rounded_to(8)(np.asarray(x))),
    "dS carried in the dtype of the inputs",
    law="gradient_on_random_reals",
)
enter(
    "output_saved_in_bfloat16",
    _backward(saved=rounded_to(8)),
    "delta formed from a stored output",
    law="gradient_on_random_reals",
)
enter(
    "gradient_ignores_feature_map",
    _backward(slope=np.ones_like),
    "gradients with respect to features, returned as those of inputs",
    law="gradient_value",
)
enter(
    "gradient_of_final_state_ignored",
    _backward(final=False),
    "fla 0a2b34f6",
    law="gradient_of_state",
)
enter(
    "gradient_mixes_heads",
    _with_vjp(_mixes_heads),
    "fla 31293264, unsloth-zoo #776",
    law="gradient_value",
)
enter(
    "gradients_swapped",
    _with_vjp(_swaps),
    "fla 505809bf: wrong arguments",
    law="gradient_value",
)
enter(
    "gradient_of_first_token_lost",
    _with_vjp(_loses_first_token),
    "fla #863",
    law="gradient_value",
)
