"""Checks of quadratic attention: masks, similarities, patterns, hashing."""

import math
from typing import Any

import numpy as np

from linkern.array import (
    any_true,
    broadcast_shapes,
    device_of,
    dtype_name,
    is_array,
    namespace_name,
)
from linkern.typing import Array
from linkern.validate.arrays import broadcasts_to, home, leading, qkv, widened
from linkern.validate.options import dimension
from linkern.validate.options import scale as _scale

__all__ = [
    "at_least",
    "attended",
    "block_size",
    "bucket_count",
    "generator",
    "mask",
    "not_negative",
    "pattern",
    "root_scale",
    "same_length",
    "similarities",
    "summary",
    "with_shared_keys",
]


def attended(
    query: Array, key: Array, value: Array, *, causal: bool
) -> tuple[Array, Array, Array]:
    """Check the three inputs and return them in compute precision.

    Causal queries are the last tokens, so there may be more keys than queries.
    """
    wide = qkv(query, key, value, causal=False)
    if causal and key.shape[-2] < query.shape[-2]:
        msg = (
            "`key` must be at least as long as `query` (axis -2) when `causal` is "
            f"True, got {key.shape[-2]} and {query.shape[-2]}; "
            "use `causal=False` for cross attention."
        )
        raise ValueError(msg)
    return wide


def same_length(query: Array, other: Array, name: str) -> None:
    """Check that an input of self-attention is as long as the query."""
    if query.shape[-2] != other.shape[-2]:
        msg = (
            f"`query` and `{name}` must have the same length (axis -2), got "
            f"{query.shape[-2]} and {other.shape[-2]}; this is self-attention."
        )
        raise ValueError(msg)


def with_shared_keys(query: Array, value: Array) -> tuple[Array, Array]:
    """Check queries, which are also keys, and values; return them widened."""
    named = {"query": query, "value": value}
    wide = {name: widened(name, x) for name, x in named.items()}
    home(named)
    for name, x in named.items():
        if x.ndim < 2:
            got = tuple(x.shape)
            msg = f"`{name}` must have shape (..., length, dim), got {got}."
            raise ValueError(msg)
    same_length(query, value, "value")
    leading("query and value", query.shape[:-2], value.shape[:-2])
    return wide["query"], wide["value"]


def mask(x: Any, query: Array, key: Array, value: Array) -> None:
    """Check the dtype, library, device and shape of a mask."""
    if x is None:
        return
    if not is_array(x) or namespace_name(x) != namespace_name(query):
        msg = (
            f"`mask` must be an array of the library of `query` "
            f"({namespace_name(query)}), got {type(x).__name__}."
        )
        raise TypeError(msg)
    if dtype_name(x.dtype) not in ("bool", "bool_"):
        msg = (
            "`mask` must be boolean, True where a query may see a key, got "
            f"{dtype_name(x.dtype)}; compare first, such as `mask == 0` for a mask "
            "that is added to the scores."
        )
        raise TypeError(msg)
    devices = [device_of(x) for x in (query, x)]
    known = [str(d) for d in devices if d is not None]
    if len(set(known)) > 1:
        msg = f"`mask` must be on the device of `query`, {known[0]}, got {known[1]}."
        raise ValueError(msg)
    lead = broadcast_shapes(*(x.shape[:-2] for x in (query, key, value)))
    expected = (*lead, query.shape[-2], key.shape[-2])
    if x.ndim < 2 or not broadcasts_to(tuple(x.shape), expected):
        msg = (
            f"`mask` must have two axes or more and broadcast to {expected}, got "
            f"{tuple(x.shape)}."
        )
        raise ValueError(msg)


def root_scale(value: Any, query: Any) -> float:
    """Return the factor on the scores, by default ``K^-0.5``."""
    factor = _scale(value)
    if factor is not None:
        return factor
    # Inputs are checked later: for invalid ones any size will do.
    size = query.shape[-1] if is_array(query) and query.ndim else 1
    return float(1 / math.sqrt(max(size, 1)))


def block_size(size: Any, length: int) -> int:
    """Return the number of keys in a block, by default all."""
    return max(length, 1) if size is None else at_least("block_size", size, 1)


def at_least(name: str, size: Any, least: int) -> int:
    """Check that an integer is at least `least`."""
    integer = dimension(name, size)
    if integer < least:
        msg = f"`{name}` must be at least {least}, got {size}."
        raise ValueError(msg)
    return integer


def pattern(name: Any, known: tuple[str, ...]) -> str:
    """Check the name of a sparse pattern."""
    if name not in known:
        quoted = ", ".join(f'"{pattern}"' for pattern in known)
        msg = f"`pattern` must be one of {quoted}, got {name!r}."
        raise ValueError(msg)
    return str(name)


def summary(size: Any, pattern: str, window: int) -> int:
    """Return the number of summary columns of a block, by default one."""
    if size is None:
        return 1
    if pattern != "fixed":
        msg = f'`summary` applies to pattern "fixed" only, got pattern "{pattern}".'
        raise ValueError(msg)
    columns = at_least("summary", size, 1)
    if columns > window:
        msg = f"`summary` must be at most `window`, {window}, got {columns}."
        raise ValueError(msg)
    return columns


def bucket_count(count: Any, default: int) -> tuple[int, ...]:
    """Return the factors of the number of buckets: even numbers, none for 1 bucket."""
    if count is None:
        return (default,)
    if count == 1 and not isinstance(count, tuple):
        return ()
    factors = count if isinstance(count, tuple) else (count,)
    sizes = tuple(dimension("bucket_count", factor) for factor in factors)
    if not sizes or any(factor < 2 or factor % 2 for factor in sizes):
        msg = (
            "`bucket_count` must be 1, a positive even integer or a tuple of such, "
            f"got {count!r}; each rotation gives buckets in pairs."
        )
        raise ValueError(msg)
    return sizes


def generator(rng: Any) -> "np.random.Generator":
    """Return the random generator."""
    try:
        return np.random.default_rng(rng)
    except (TypeError, ValueError) as error:
        msg = (
            "`rng` must be what `numpy.random.default_rng` takes, such as a "
            f"non-negative integer or a Generator, got {rng!r}."
        )
        raise type(error)(msg) from None


def similarities(similarity: Any, query: Array, key: Array) -> Array:
    """Return ``similarity(query, key)`` after checking its library, shape and dtype."""
    if not callable(similarity):
        msg = (
            "`similarity` must be a callable from (..., T, K) and (..., S, K) to "
            f"(..., T, S), such as `linkern.similarity.exponential()`, got "
            f"{similarity!r}."
        )
        raise TypeError(msg)
    weights = similarity(query, key)
    if not is_array(weights) or namespace_name(weights) != namespace_name(query):
        msg = (
            "`similarity` must return an array of the library it was given "
            f"({namespace_name(query)}), got {type(weights).__name__}."
        )
        raise TypeError(msg)
    lead = leading("query and key", query.shape[:-2], key.shape[:-2])
    expected = (*lead, query.shape[-2], key.shape[-2])
    if tuple(weights.shape) != expected:
        msg = (
            "`similarity` must return one number for each query and key, shape "
            f"{expected}, got {tuple(weights.shape)}."
        )
        raise ValueError(msg)
    if weights.dtype != query.dtype:
        msg = (
            "`similarity` must keep the dtype it was given "
            f"({dtype_name(query.dtype)}), got {dtype_name(weights.dtype)}."
        )
        raise TypeError(msg)
    return weights  # type: ignore[no-any-return]


def not_negative(weights: Array) -> None:
    """Check that no similarity is negative; NaN passes and shows in the output."""
    if any_true(weights < 0):
        msg = (
            "`similarity` must not be negative, got a negative entry; square it, or "
            "map features to non-negative numbers first."
        )
        raise ValueError(msg)
