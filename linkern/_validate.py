"""Every argument check and every error sentence of the public operators.

A sentence names the argument in backticks, the rule, what was got and, where it is not
obvious, what to do.
"""

import math
import numbers
import operator
from typing import Any

from linkern._array import (
    astype,
    broadcast_shapes,
    compute_dtype,
    device_of,
    dtype_name,
    is_array,
    namespace,
    namespace_name,
)
from linkern._typing import Array

__all__ = [
    "chunk_size",
    "combinable",
    "dimension",
    "features",
    "flag",
    "form",
    "initial_state",
    "qkv",
    "scale",
    "widened",
]


def qkv(
    query: Array, key: Array, value: Array, *, causal: bool, rank: int = 2
) -> tuple[Array, Array, Array]:
    """Check the three inputs against each other and return them in compute precision.

    `rank` is 2 for sequences ``(..., T, K)`` and 1 for single tokens ``(..., K)``.
    """
    named = {"query": query, "key": key, "value": value}
    wide = {name: widened(name, x) for name, x in named.items()}
    _same_home(named)
    axes = "(..., length, dim)" if rank == 2 else "(..., dim)"
    for name, x in named.items():
        if x.ndim < rank:
            msg = f"`{name}` must have shape {axes}, got {tuple(x.shape)}."
            raise ValueError(msg)
    if query.shape[-1] != key.shape[-1]:
        msg = (
            "`query` and `key` must have the same key dimension (last axis), got "
            f"{query.shape[-1]} and {key.shape[-1]}."
        )
        raise ValueError(msg)
    if rank == 2:
        _lengths(query, key, value, causal=causal)
    leading("query, key and value", *(x.shape[:-rank] for x in named.values()))
    return wide["query"], wide["key"], wide["value"]


def _lengths(query: Array, key: Array, value: Array, *, causal: bool) -> None:
    if key.shape[-2] != value.shape[-2]:
        msg = (
            "`key` and `value` must have the same length (axis -2), got "
            f"{key.shape[-2]} and {value.shape[-2]}."
        )
        raise ValueError(msg)
    if causal and query.shape[-2] != key.shape[-2]:
        msg = (
            "`query` and `key` must have the same length (axis -2) when `causal` is "
            f"True, got {query.shape[-2]} and {key.shape[-2]}; "
            "use `causal=False` for cross attention."
        )
        raise ValueError(msg)


def leading(names: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the common leading axes."""
    try:
        return broadcast_shapes(*shapes)
    except ValueError:
        got = ", ".join(str(tuple(shape)) for shape in shapes)
        msg = (
            f"the leading axes of {names} must broadcast against each other, got {got}."
        )
        raise ValueError(msg) from None


def widened(name: str, x: Any) -> Array:
    """Return the floating-point array `x` in float32 or wider."""
    if not is_array(x):
        msg = (
            f"`{name}` must be an array of an array API library (NumPy, PyTorch, JAX, "
            f"CuPy, ...), got {type(x).__name__}; convert it first."
        )
        raise TypeError(msg)
    dtype = compute_dtype(x)
    if dtype is None:
        msg = (
            f"`{name}` must have a real floating dtype (float16, bfloat16, float32 or "
            f"float64), got {dtype_name(x.dtype)}."
        )
        raise TypeError(msg)
    return astype(x, dtype)


def _same_home(named: dict[str, Array]) -> None:
    """Check that all arrays share one library, one device and one dtype."""
    try:
        namespace(*named.values())
    except TypeError:
        msg = (
            f"{_listed(named)} must come from one array library, got "
            f"{', '.join(namespace_name(x) for x in named.values())}."
        )
        raise TypeError(msg) from None
    dtypes = [dtype_name(x.dtype) for x in named.values()]
    if len(set(dtypes)) > 1:
        msg = f"{_listed(named)} must have the same dtype, got {', '.join(dtypes)}."
        raise TypeError(msg)
    devices = [device_of(x) for x in named.values()]
    known = [str(device) for device in devices if device is not None]
    if len(set(known)) > 1:
        msg = f"{_listed(named)} must have the same device, got {', '.join(known)}."
        raise ValueError(msg)


def _listed(named: dict[str, Array]) -> str:
    *head, last = (f"`{name}`" for name in named)
    return f"{', '.join(head)} and {last}"


def features(name: str, x: Array, feature_map: Any) -> Array:
    """Return ``feature_map(x)`` after checking that it is still a sequence of rows."""
    if not callable(feature_map):
        msg = (
            "`feature_map` must be a callable from (..., K) to (..., F), such as "
            f"`linkern.elu_plus_one`, got {feature_map!r}."
        )
        raise TypeError(msg)
    mapped = feature_map(x)
    if not is_array(mapped) or namespace_name(mapped) != namespace_name(x):
        msg = (
            f"`feature_map` must return an array of the library it was given "
            f"({namespace_name(x)}), got {type(mapped).__name__} for `{name}`."
        )
        raise TypeError(msg)
    if tuple(mapped.shape[:-1]) != tuple(x.shape[:-1]):
        msg = (
            "`feature_map` must keep every axis but the last: it took "
            f"`{name}` from {tuple(x.shape)} to {tuple(mapped.shape)}."
        )
        raise ValueError(msg)
    if mapped.dtype != x.dtype:
        msg = (
            f"`feature_map` must keep the dtype it was given ({dtype_name(x.dtype)}), "
            f"got {dtype_name(mapped.dtype)} for `{name}`."
        )
        raise TypeError(msg)
    return mapped  # type: ignore[no-any-return]


def initial_state(
    state: Any, key: Array, value: Array, *, normalize: bool, rank: int = 2
) -> None:
    """Check that `state` fits features `key` and values `value`."""
    memory, normalizer = _state_parts("initial_state", state)
    if normalize and normalizer is None:
        msg = (
            "`initial_state` must carry a normalizer when `normalize` is True, got "
            "None; start from `State.zeros(..., normalize=True)`."
        )
        raise ValueError(msg)
    if not normalize and normalizer is not None:
        msg = (
            "`initial_state` must not carry a normalizer when `normalize` is False; "
            "pass `State(memory, None)`."
        )
        raise ValueError(msg)
    named = {"key": key, "initial_state.memory": memory}
    if normalizer is not None:
        named["initial_state.normalizer"] = normalizer
    for name, x in named.items():
        widened(name, x)
    _same_home(named)
    batch = leading("key and value", key.shape[:-rank], value.shape[:-rank])
    expected: dict[str, tuple[int, ...]] = {"memory": (key.shape[-1], value.shape[-1])}
    if normalizer is not None:
        expected["normalizer"] = (key.shape[-1],)
    for part, core in expected.items():
        got = tuple(named[f"initial_state.{part}"].shape)
        if got[-len(core) :] != core or not _broadcasts_to(got[: -len(core)], batch):
            msg = (
                f"`initial_state.{part}` must have shape {(*batch, *core)}, or leading "
                f"axes that broadcast to it, got {got}."
            )
            raise ValueError(msg)


def _broadcasts_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    try:
        return broadcast_shapes(shape, target) == tuple(target)
    except ValueError:
        return False


def _state_parts(name: str, state: Any) -> tuple[Any, Any]:
    try:
        memory, normalizer = state.memory, state.normalizer
    except AttributeError:
        msg = f"`{name}` must be a `State` or None, got {type(state).__name__}."
        raise TypeError(msg) from None
    return memory, normalizer


def combinable(earlier: Any, later: Any) -> None:
    """Check that two states can be added."""
    memory, normalizer = _state_parts("later", later)
    if (earlier.normalizer is None) != (normalizer is None):
        msg = "`later` must carry a normalizer exactly when this state does."
        raise ValueError(msg)
    parts = {"memory": (earlier.memory, memory)}
    if normalizer is not None:
        parts["normalizer"] = (earlier.normalizer, normalizer)
    for part, (own, other) in parts.items():
        widened(f"later.{part}", other)
        _same_home({part: own, f"later.{part}": other})
        if tuple(own.shape) != tuple(other.shape):
            msg = (
                f"`later.{part}` must have the shape of this state's {part}, "
                f"{tuple(own.shape)}, got {tuple(other.shape)}."
            )
            raise ValueError(msg)


def form(name: Any, known: tuple[str, ...]) -> str:
    """Check the name of a form."""
    if name not in known:
        quoted = ", ".join(f'"{form}"' for form in known)
        msg = f"`form` must be one of {quoted}, got {name!r}."
        raise ValueError(msg)
    return str(name)


def chunk_size(size: Any, form: str) -> int | None:
    """Check that a chunk size is a positive integer and that the form has chunks."""
    if size is None:
        return None
    integer = _as_index(size)
    if integer is None or integer < 1:
        msg = f"`chunk_size` must be a positive integer, got {size!r}."
        raise (ValueError if isinstance(size, numbers.Real) else TypeError)(msg)
    if form in ("recurrent", "parallel"):
        msg = f'`chunk_size` applies to form "chunkwise" only, got form "{form}".'
        raise ValueError(msg)
    return integer


def dimension(name: str, size: Any) -> int:
    """Check the size of an axis."""
    integer = _as_index(size)
    if integer is None:
        msg = f"`{name}` must be an integer, got {size!r}."
        raise TypeError(msg)
    if integer < 0:
        msg = f"`{name}` must not be negative, got {size}."
        raise ValueError(msg)
    return integer


def _as_index(size: Any) -> int | None:
    if isinstance(size, bool):
        return None
    try:
        return operator.index(size)
    except TypeError:
        return None


def flag(name: str, value: Any) -> bool:
    """Check a switch: truthy stand-ins are refused, since None or 0 hide mistakes."""
    if not isinstance(value, bool):
        msg = f"`{name}` must be True or False, got {value!r}."
        raise TypeError(msg)
    return value


def scale(value: Any) -> float | None:
    """Check the factor on the scores."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        msg = f"`scale` must be a real number or None, got {value!r}."
        raise TypeError(msg)
    if not math.isfinite(value) or value == 0:
        msg = f"`scale` must be finite and not zero, got {value!r}."
        raise ValueError(msg)
    return float(value)
