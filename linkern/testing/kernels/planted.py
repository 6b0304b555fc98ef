"""Kernels that each break one law, for the laws that no mutant is first to break.

They come after no bug in the field, so the kill matrix leaves them out. Tests use them
to see each law broken, and `linkern explain` shows them.
"""

from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import (
    Array,
    Kernel,
    Parts,
    State,
    recurrence,
    stateful,
)
from linkern.testing.kernels.correct.linear import quadratic
from linkern.testing.kernels.mutants.catalogue import Mutant

__all__ = ["PLANTED"]

PLANTED: dict[str, Mutant] = {}
_RIGHT = stateful(Parts())
_KDA = recurrence("kda")


def plant(
    name: str,
    kernel: Kernel,
    check: str,
    op: str = "linear_attention",
    **contract: Any,
) -> None:
    """Add a kernel that breaks the law of a check under a contract."""
    precedent = "made for this law"
    PLANTED[name] = Mutant(name, op, kernel, precedent, (check,), contract=contract)


def _accepts_anything(query: Array, key: Array, value: Array) -> Array:
    """Cut what does not fit, in silence."""
    length = min(x.shape[-2] for x in (query, key, value))
    heads = min(x.shape[1] for x in (query, key, value))
    channels = min(query.shape[-1], key.shape[-1])
    q, k, v = (x[:, :heads, :length] for x in (query, key, value))
    return quadratic(q[..., :channels], k[..., :channels], v)


def _two_forms(
    query: Array,
    key: Array,
    value: Array,
    form: str = "parallel",
    chunk_size: int | None = None,
) -> Array:
    """Lose the first key in the recurrent form, and if there are several chunks."""
    output = quadratic(query, key, value)
    if form == "recurrent" or (chunk_size is not None and chunk_size < query.shape[-2]):
        q, k, v = (x[..., 1:, :] for x in (query, key, value))
        output[..., 1:, :] = quadratic(q, k, v)
    return output


def _channels_by_place(query: Array, key: Array, value: Array) -> Array:
    """Read the last of more than three channels of the query twice."""
    if query.shape[-1] > 3:
        query = np.concatenate([query[..., 1:], query[..., -1:]], axis=-1)
    return quadratic(query, key, value)


def _adds_a_square(query: Array, key: Array, value: Array) -> Array:
    """Keep signs, and yet not be linear in the values."""
    output = quadratic(query, key, value)
    return output + output.dtype.type(1e-3) * output * abs(output)


def _tiny_epsilon(query: Array, key: Array, value: Array) -> Array:
    """Add an epsilon that only scaling the keys shows."""
    scores = np.tril(query @ np.swapaxes(key, -1, -2))
    divisor = scores.sum(-1, keepdims=True) + np.asarray(1e-18, query.dtype)
    return (scores @ value) / divisor


def _first_row_undefined(query: Array, key: Array, value: Array) -> Array:
    """Divide zero by zero where a strict mask leaves the first query no key."""
    output = quadratic(query, key, value)
    output[..., :1, :] = np.nan
    return output


def _expands_nothing(query: Array, key: Array, value: Array) -> Array:
    """Read broadcast heads as if the memory held all of them."""
    if key.strides[1] == 0 and key.shape[1] > 1:
        key = key + np.arange(key.shape[1], dtype=key.dtype)[:, None, None]
    return quadratic(query, key, value)


def _counts_from_its_start(
    query: Array, key: Array, value: Array, initial_state: State | None = None
) -> tuple[Array, State]:
    """Add one to the memory of every span that starts from no state."""
    output, (memory, normalizer) = _RIGHT(query, key, value, initial_state)
    return output, (memory + (initial_state is None), normalizer)


def _drifts(
    query: Array, key: Array, value: Array, initial_state: State | None = None
) -> tuple[Array, State]:
    """Truncate the state by so little that one hand-over does not show it."""
    output, (memory, normalizer) = _RIGHT(query, key, value, initial_state)
    bits = 2.0**16 if memory.dtype == np.float32 else 2.0**45
    mantissa, exponent = np.frexp(memory)
    return output, (np.ldexp(np.trunc(mantissa * bits) / bits, exponent), normalizer)


class _SlopeOfAnother:
    """Gradients of the same operator with queries twice as large."""

    def __call__(self, query: Array, key: Array, value: Array) -> object:
        return _RIGHT(query, key, value)

    def vjp(
        self, query: Array, key: Array, value: Array, output_cotangent: Array
    ) -> tuple[Array, ...]:
        vjp = _RIGHT.vjp  # type: ignore[attr-defined]
        gradients: tuple[Array, ...] = vjp(2 * query, key, value, output_cotangent)
        return gradients[:3]


def _rate_lost_without_decay(
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None = None,
    beta: Array | None = None,
) -> object:
    """Take a shortcut where nothing decays, and lose the rate there."""
    if log_decay is not None and not log_decay.any():
        beta = None
    return _KDA(query, key, value, log_decay, beta)


plant("accepts_anything", _accepts_anything, "bad_input", validates=True)
plant("first_row_undefined", _first_row_undefined, "finite_output")
plant("form_loses_a_key", _two_forms, "parallel_equals_recurrent")
plant("chunks_lose_a_key", _two_forms, "chunk_invariance")
plant("channels_by_place", _channels_by_place, "permutations")
plant("adds_a_square", _adds_a_square, "additivity_of_values")
plant("tiny_epsilon", _tiny_epsilon, "scaling_of_keys", feature_map="identity")
plant("expands_nothing", _expands_nothing, "broadcast_inputs")
plant("counts_from_its_start", _counts_from_its_start, "state_merge")
plant("state_drifts", _drifts, "state_drift")
plant("slope_of_another", _SlopeOfAnother(), "finite_differences")
plant("rate_lost_without_decay", _rate_lost_without_decay, "reduction", op="kda")
