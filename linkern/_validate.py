"""Every argument check and every error sentence of the public operators.

A sentence names the argument in backticks, the rule, what was got and, where it is not
obvious, what to do.
"""

import math
import numbers
import operator
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from linkern._array import (
    any_true,
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
    "gate_fits",
    "home",
    "initial_state",
    "leading",
    "not_positive",
    "offsets",
    "packed_state",
    "positive",
    "qkv",
    "scale",
    "shapes",
    "state_parts_fit",
    "widened",
    "within",
]


def qkv(
    query: Array, key: Array, value: Array, *, causal: bool, rank: int = 2
) -> tuple[Array, Array, Array]:
    """Check the three inputs against each other and return them in compute precision.

    `rank` is 2 for sequences ``(..., T, K)`` and 1 for single tokens ``(..., K)``.
    """
    named = {"query": query, "key": key, "value": value}
    wide = {name: widened(name, x) for name, x in named.items()}
    home(named)
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


def home(named: Mapping[str, Array]) -> None:
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


def _listed(named: Mapping[str, Array]) -> str:
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
    home(named)
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
        home({part: own, f"later.{part}": other})
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


# What the letters of a shape stand for in error sentences.
_AXES = {
    "t": "T",
    "s": "n T",
    "k": "K",
    "v": "V",
    "m": "M",
    "l": "L",
}


def shapes(inputs: Mapping[str, Array], axes: Mapping[str, str]) -> dict[str, int]:
    """Check the last axes of all inputs against each other and return their sizes.

    `axes` has one letter for each of the last axes of an input: ``t`` tokens, ``s``
    a multiple of them, ``k``, ``v``, ``m``, ``l`` dimensions. The first input that has
    a letter sets its size.
    """
    sizes: dict[str, int] = {}
    first: dict[str, str] = {}
    for name, x in inputs.items():
        letters = axes[name]
        wanted = f"(..., {', '.join(_AXES[a] for a in letters)})"
        got = tuple(x.shape)
        if len(got) < len(letters):
            msg = f"`{name}` must have shape {wanted}, got {got}."
            raise ValueError(msg)
        for letter, size in zip(letters, got[len(got) - len(letters) :], strict=True):
            due = sizes.setdefault(letter, size)
            setter = first.setdefault(letter, name)
            if size != due:
                fits = ", ".join(str(sizes.get(a, _AXES[a])) for a in letters)
                msg = (
                    f"`{name}` must have shape {wanted} = (..., {fits}), where "
                    f"{_AXES[letter]} = {due} is that of `{setter}`, got {got}."
                )
                raise ValueError(msg)
    if "s" in sizes and (sizes["s"] % sizes["t"] if sizes["t"] else sizes["s"]):
        msg = (
            f"`{first['s']}` must have a multiple of the length of `{first['t']}` "
            f"(axis -2), got {sizes['s']} and {sizes['t']}."
        )
        raise ValueError(msg)
    return sizes


def not_positive(name: str, x: Array) -> None:
    """Check that log-decays are logarithms of numbers up to 1."""
    if any_true(x > 0):
        msg = (
            f"`{name}` must be a natural logarithm of a decay, so 0 or negative, got a "
            "positive entry; pass log(decay), not the decay itself."
        )
        raise ValueError(msg)


def positive(name: str, x: Array) -> None:
    """Check that all entries are above 0; NaN passes and shows in the output."""
    if any_true(x <= 0):
        msg = f"`{name}` must be positive, got an entry that is not."
        raise ValueError(msg)


def within(name: str, x: Array, low: float, high: float) -> None:
    """Check that all entries are in an interval; NaN passes and shows in the output."""
    if any_true((x < low) | (x > high)):
        msg = f"`{name}` must be in [{low:g}, {high:g}], got an entry outside."
        raise ValueError(msg)


def gate_fits(
    name: str, shape: tuple[int, ...], lead: tuple[int, ...], batch: tuple[int, ...]
) -> None:
    """Check that the leading axes of a gate are those of the main inputs, or fewer."""
    if not _broadcasts_to(lead, batch):
        core = shape[len(lead) :]
        msg = (
            f"`{name}` must have shape {(*batch, *core)}, or leading axes that "
            f"broadcast to it, got {shape}."
        )
        raise ValueError(msg)


def state_parts_fit(
    state: Any,
    cores: Mapping[str, tuple[int, ...]],
    batch: tuple[int, ...],
    like: Array,
) -> None:
    """Check an initial state against the last axes of the parts that are due."""
    parts = dict(
        zip(("memory", "normalizer"), _state_parts("initial_state", state), strict=True)
    )
    if "normalizer" not in cores and parts["normalizer"] is not None:
        msg = (
            "`initial_state` must not carry a normalizer for this operator; pass "
            "`State(memory, None)`."
        )
        raise ValueError(msg)
    if "normalizer" in cores and parts["normalizer"] is None:
        msg = "`initial_state` must carry a normalizer for this operator, got None."
        raise ValueError(msg)
    named = {f"initial_state.{part}": parts[part] for part in cores}
    for name, x in named.items():
        widened(name, x)
    home({"the inputs, widened,": like, **named})
    for part, core in cores.items():
        got = tuple(parts[part].shape)
        lead = got[: len(got) - len(core)]
        if got[len(lead) :] != core or not _broadcasts_to(lead, batch):
            msg = (
                f"`initial_state.{part}` must have shape {(*batch, *core)}, or leading "
                f"axes that broadcast to it, got {got}."
            )
            raise ValueError(msg)


def offsets(cu_seqlens: Any, length: int) -> tuple[int, ...]:
    """Return the offsets of packed sequences as integers, after checking them."""
    try:
        found = tuple(operator.index(x) for x in _listed_offsets(cu_seqlens))
    except TypeError:
        msg = (
            "`cu_seqlens` must be a sequence of integers, such as [0, 3, 8], got "
            f"{cu_seqlens!r}."
        )
        raise TypeError(msg) from None
    if not found or found[0] != 0:
        msg = f"`cu_seqlens` must begin with 0, got {list(found)}."
        raise ValueError(msg)
    if any(b < a for a, b in pairwise(found)):
        msg = f"`cu_seqlens` must not decrease, got {list(found)}."
        raise ValueError(msg)
    if found[-1] > length:
        msg = f"`cu_seqlens` must not exceed the length, {length}, got {list(found)}."
        raise ValueError(msg)
    return found


def _listed_offsets(cu_seqlens: Any) -> Any:
    """Return an array of any library as a list of integers."""
    if is_array(cu_seqlens):
        if cu_seqlens.ndim != 1:
            msg = f"`cu_seqlens` must have one axis, got {tuple(cu_seqlens.shape)}."
            raise ValueError(msg)
        return [cu_seqlens[i] for i in range(cu_seqlens.shape[0])]
    return cu_seqlens


def packed_state(state: Any, segments: int) -> None:
    """Check that a state has one entry for each packed sequence."""
    memory, normalizer = _state_parts("initial_state", state)
    for part, x in (("memory", memory), ("normalizer", normalizer)):
        if x is not None and (not is_array(x) or x.ndim < 1 or x.shape[0] != segments):
            got = tuple(x.shape) if is_array(x) else type(x).__name__
            msg = (
                f"`initial_state.{part}` must have the packed sequences as its first "
                f"axis, {segments} of them, got {got}."
            )
            raise ValueError(msg)
