"""Checks of arrays: library, dtype, device and shapes."""

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from linkern.array import (
    any_true,
    astype,
    broadcast_shapes,
    compute_dtype,
    device_of,
    dtype_name,
    is_array,
    namespace,
    namespace_name,
    on_numpy,
)
from linkern.typing import Array, DType
from linkern.validate.layout import AXES, axis_names, heads_last, time_first

__all__ = [
    "BETA",
    "a_feature_map",
    "an_array",
    "broadcasts_to",
    "features",
    "gate_fits",
    "gates",
    "home",
    "instance",
    "last_axis",
    "leading",
    "not_positive",
    "positive",
    "qkv",
    "refuse_outside",
    "refuse_positive",
    "rows",
    "shapes",
    "wide_dtype",
    "wide_like",
    "widened",
    "within",
    "zero_or_positive",
]

# How much of an old value may be replaced.
BETA = (0.0, 2.0)


def widened(name: str, x: Any) -> Array:
    """Return the floating-point array `x` in float32 or wider."""
    return astype(x, wide_dtype(name, x))


def wide_like(name: str, x: Any) -> Array:
    """Return an array of the library, the device and the wide dtype of `x`.

    It is `x` itself, or one without entries: nothing is widened.
    """
    dtype = wide_dtype(name, x)
    return x if x.dtype == dtype else astype(x[None, ...][..., :0], dtype)


def wide_dtype(name: str, x: Any) -> DType:
    """Return the dtype in which to compute with the floating-point array `x`."""
    an_array(name, x)
    dtype = compute_dtype(x)
    if dtype is None:
        msg = (
            f"`{name}` must have a real floating dtype (float16, bfloat16, float32 or "
            f"float64), got {dtype_name(x.dtype)}."
        )
        raise TypeError(msg)
    return dtype


def an_array(name: str, x: Any) -> None:
    """Check that `x` is an array of an array library."""
    if is_array(x):
        return
    got = f"{type(x).__name__}; convert it first"
    if isinstance(x, np.ma.MaskedArray):
        got = "MaskedArray, whose mask would be ignored; pass x.filled(number)"
    msg = (
        f"`{name}` must be an array of an array API library (NumPy, PyTorch, JAX, "
        f"CuPy, ...), got {got}."
    )
    raise TypeError(msg)


def instance(name: str, x: Any, expected: type) -> None:
    """Check that `x` is of a class."""
    if not isinstance(x, expected):
        msg = (
            f"`{name}` must be of the class {expected.__name__}, got "
            f"{type(x).__name__}."
        )
        raise TypeError(msg)


def last_axis(name: str, x: Any, size: int, *, rank: int = 1) -> None:
    """Check the last axis of an array, and that one of tokens is before it if need be.

    Parameters
    ----------
    name : str
        Of the argument.
    x : array (..., size) or (..., T, size)
        The array.
    size : int
        Entries along the last axis.
    rank : {1, 2}
        The least number of axes.
    """
    an_array(name, x)
    if x.ndim < rank or x.shape[-1] != size:
        axes = "..., T" if rank == 2 else "..."
        msg = f"`{name}` must have shape ({axes}, {size}), got {tuple(x.shape)}."
        raise ValueError(msg)


def home(named: Mapping[str, Array]) -> None:
    """Check that all arrays share one library, one device and one dtype."""
    first, *others = named.values()
    if on_numpy(first, *others) and all(x.dtype == first.dtype for x in others):
        return  # NumPy has one device, and this check runs for every token
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


def qkv(
    query: Array,
    key: Array,
    value: Array,
    *,
    causal: bool,
    rank: int = 2,
    wide: bool = True,
) -> tuple[Array, Array, Array]:
    """Check the three inputs against each other and return them in compute precision.

    `rank` is 2 for sequences ``(..., T, K)`` and 1 for single tokens ``(..., K)``. If
    not `wide`, the inputs are returned unchanged.
    """
    named = {"query": query, "key": key, "value": value}
    checked = rows(named, rank=rank, wide=wide)
    if rank == 2:
        _lengths(query, key, value, causal=causal)
    leading("query, key and value", *(x.shape[:-rank] for x in named.values()))
    return checked["query"], checked["key"], checked["value"]


def rows(
    named: Mapping[str, Array], *, rank: int = 2, wide: bool = True
) -> dict[str, Array]:
    """Check queries, keys and further inputs; return them in compute precision."""
    dtypes = {name: wide_dtype(name, x) for name, x in named.items()}
    home(named)
    axes = "(..., length, dim)" if rank == 2 else "(..., dim)"
    for name, x in named.items():
        if x.ndim < rank:
            msg = f"`{name}` must have shape {axes}, got {tuple(x.shape)}."
            raise ValueError(msg)
    query, key = named["query"], named["key"]
    if query.shape[-1] != key.shape[-1]:
        msg = (
            "`query` and `key` must have the same key dimension (last axis), got "
            f"{query.shape[-1]} and {key.shape[-1]}."
        )
        raise ValueError(msg)
    return {name: astype(x, dtypes[name]) if wide else x for name, x in named.items()}


def _lengths(query: Array, key: Array, value: Array, *, causal: bool) -> None:
    if key.shape[-2] != value.shape[-2]:
        msg = (
            "`key` and `value` must have the same length (axis -2), got "
            f"{key.shape[-2]} and {value.shape[-2]}"
            f"{time_first(tuple(value.shape), 'tv', key.shape[-2])}."
        )
        raise ValueError(msg)
    if causal and query.shape[-2] != key.shape[-2]:
        msg = (
            "`query` and `key` must have the same length (axis -2) when `causal` is "
            f"True, got {query.shape[-2]} and {key.shape[-2]}; "
            "use `causal=False` for cross attention"
            f"{time_first(tuple(key.shape), 'tk', query.shape[-2])}."
        )
        raise ValueError(msg)


def a_feature_map(function: Any) -> None:
    """Check that a feature map is callable."""
    if not callable(function):
        msg = (
            "`feature_map` must be a callable from (..., K) to (..., F), such as "
            f"`linkern.elu_plus_one`, got {function!r}."
        )
        raise TypeError(msg)


def features(name: str, x: Array, feature_map: Any) -> Array:
    """Return ``feature_map(x)`` after checking its library, shape and dtype."""
    a_feature_map(feature_map)
    mapped = feature_map(x)
    if type(mapped) is not type(x) and (
        not is_array(mapped) or namespace_name(mapped) != namespace_name(x)
    ):
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
        got = tuple(x.shape)
        if len(got) < len(letters):
            names = axis_names(AXES[a] for a in letters)
            msg = f"`{name}` must have shape {names}, got {got}."
            raise ValueError(msg)
        for letter, size in zip(letters, got[len(got) - len(letters) :], strict=True):
            if letter not in sizes:
                sizes[letter], first[letter] = size, name
            elif size != sizes[letter]:
                names = axis_names(AXES[a] for a in letters)
                fits = axis_names(sizes.get(a, AXES[a]) for a in letters)
                hint = time_first(got, letters, sizes[letter])
                msg = (
                    f"`{name}` must have shape {names} = {fits}, where {AXES[letter]} "
                    f"= {sizes[letter]} is that of `{first[letter]}`, got {got}"
                    f"{hint if letter in 'ts' else ''}."
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
    """Check that log-decays are zero or negative."""
    if any_true(x > 0):
        refuse_positive(name)


def refuse_positive(name: str) -> NoReturn:
    """Raise the error for a positive log-decay."""
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


def zero_or_positive(name: str, x: Array) -> None:
    """Check that no entry is below 0; NaN passes and shows in the output."""
    if any_true(x < 0):
        msg = f"`{name}` must be zero or positive, got a negative entry."
        raise ValueError(msg)


def within(name: str, x: Array, low: float, high: float) -> None:
    """Check that all entries are in an interval; NaN passes and shows in the output."""
    if any_true(x < low) or any_true(x > high):
        refuse_outside(name, low, high)


def refuse_outside(name: str, low: float, high: float) -> NoReturn:
    """Raise the error for an entry outside of an interval."""
    msg = f"`{name}` must be in [{low:g}, {high:g}], got an entry outside."
    raise ValueError(msg)


def gates(log_decay: Array | None, beta: Array | None) -> None:
    """Check the values of gates; None for those that an operator does not have."""
    if log_decay is not None:
        not_positive("log_decay", log_decay)
    if beta is not None:
        within("beta", beta, *BETA)


def gate_fits(
    name: str,
    shape: tuple[int, ...],
    lead: tuple[int, ...],
    batch: tuple[int, ...],
    length: int | None,
) -> None:
    """Check that the leading axes of a gate broadcast to those of the main inputs.

    `length` is the number of tokens, None if there is no axis of them.
    """
    if not broadcasts_to(lead, batch):
        core = shape[len(lead) :]
        msg = (
            f"`{name}` must have shape {(*batch, *core)}, or leading axes that "
            f"broadcast to it, got {shape}{heads_last(lead, batch, length)}."
        )
        raise ValueError(msg)


def broadcasts_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Return True if `shape` broadcasts to exactly `target`."""
    try:
        return broadcast_shapes(shape, target) == tuple(target)
    except ValueError:
        return False
