"""Defects of arithmetic: epsilons, narrow stages, approximations, overflow."""

from collections.abc import Callable

import numpy as np

from linkern.testing.kernels.assembly import (
    Array,
    Change,
    Parts,
    assemble,
    elu_plus_one,
    rounded_to,
)
from linkern.testing.kernels.mutants.catalogue import enter

__all__: list[str] = []


def _truncated_to(bits: int) -> Change:
    def truncated(x: Array) -> Array:
        mantissa, exponent = np.frexp(x)
        kept = np.trunc(mantissa * 2.0**bits) / 2.0**bits
        return np.ldexp(kept, exponent).astype(x.dtype)

    return truncated


def _through_float16(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(x.dtype)


def _coarse_reciprocal(numerator: Array, denominator: Array) -> Array:
    return numerator * _truncated_to(12)(1 / denominator)


def _plus(eps: float) -> Callable[[Array, Array], Array]:
    return lambda n, d: n / (d + np.asarray(eps, d.dtype))


def _all_float16(query: Array, key: Array, value: Array) -> Array:
    """Sum in float16: what overflows becomes infinite, and its quotient zero."""
    q, k, v = (x.astype(np.float16) for x in (query, key, value))
    with np.errstate(all="ignore"):
        q, k = elu_plus_one(q), elu_plus_one(k)
        memory = np.cumsum(k[..., :, None] * v[..., None, :], -3, dtype=np.float16)
        z = np.cumsum(k, axis=-2, dtype=np.float16)
        numerator = (q[..., None] * memory).sum(-2, dtype=np.float16)
        denominator = (q * z).sum(-1, keepdims=True, dtype=np.float16)
        return (numerator / denominator).astype(query.dtype)


def _expands_the_sum_of_scores(numerator: Array, denominator: Array) -> Array:
    """Square and take the root on the way: it overflows long before the sum does."""
    with np.errstate(all="ignore"):
        return numerator / np.sqrt(denominator * denominator)


enter(
    "eps_1e-6",
    assemble(Parts(divide=_plus(1e-6))),
    "kornia, fast-transformers",
    "row_normalisation",
)
enter(
    "eps_1e-10",
    assemble(Parts(divide=_plus(1e-10))),
    "fla naive_chunk_linear_attn",
    "row_normalisation",
)
enter(
    "denominator_clamped",
    assemble(Parts(divide=lambda n, d: n / np.maximum(d, 1e-3))),
    "linear-attention-transformer",
    "row_normalisation",
)
enter(
    "coarse_reciprocal",
    assemble(Parts(divide=_coarse_reciprocal)),
    "rcp.approx",
)
enter(
    "bfloat16_state",
    assemble(Parts(carried=rounded_to(8))),
    "ollama #15865",
)
enter(
    "tfloat32_state",
    assemble(Parts(carried=rounded_to(11))),
    "state kept in tensor cores",
    "value_on_random_reals",
)
enter(
    "bfloat16_normalizer",
    assemble(Parts(normalizer=rounded_to(8))),
    "fla: `k_cum` in k.dtype",
)
enter(
    "bfloat16_scores",
    assemble(Parts(scores=rounded_to(8))),
    "scores stored for a second product",
)
enter(
    "tfloat32_operands",
    assemble(Parts(operand=rounded_to(11))),
    "allow_tf32 by default",
)
enter(
    "float16_values",
    assemble(Parts(values=_through_float16)),
    "vllm #54308: readout in float16",
    "scaling_of_values",
)
enter(
    "output_truncated",
    assemble(Parts(finish=_truncated_to(16))),
    "stores by bit shift",
)
enter(
    "all_in_float16",
    _all_float16,
    "fast-transformers #32: sums of keys overflow",
    "ranges",
)
enter(
    "denominator_squared_on_the_way",
    assemble(Parts(divide=_expands_the_sum_of_scores)),
    "fla #122: overflow inside, not in the result",
    "ranges",
)
enter(
    "decays_by_rounding",
    assemble(Parts(carried=lambda x: x * np.asarray(1 - 2.0**-13, x.dtype))),
    "lightning attention run with a decay that should be one",
    "value_on_random_reals",
)
enter(
    "values_clipped",
    assemble(Parts(values=lambda v: np.clip(v, -1000, 1000))),
    "clamping against overflow",
    "scaling_of_values",
)
