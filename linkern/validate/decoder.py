"""Argument checks of decoders."""

from typing import Any, NoReturn

import numpy as np

from linkern import validate
from linkern.array import is_array, namespace_name

__all__ = [
    "GPU_DTYPES",
    "array_of",
    "device",
    "needs_cupy",
    "no_window",
    "output",
    "sizes",
    "sizes_of",
    "token",
    "token_dtype",
]

_DTYPES = ("float16", "float32", "float64")
GPU_DTYPES = (*_DTYPES, "bfloat16")
_SPELLED = {"numpy": "NumPy", "cupy": "CuPy"}


def array_of(library: str, name: str, x: Any) -> None:
    """Check that `x` is an array of a library."""
    if library == "numpy" and isinstance(x, np.ndarray):
        validate.an_array(name, x)  # a subclass may be none
        return
    got = namespace_name(x) if is_array(x) else type(x).__name__
    if got != library:
        msg = (
            f"`{name}` must be a {_SPELLED[library]} array, got {got}; "
            "`linear_attention_step` takes every array library."
        )
        raise TypeError(msg)


def device(name: Any) -> None:
    """Check the device of a decoder."""
    if name not in (None, "cpu", "cuda"):
        msg = f'`device` must be "cpu", "cuda" or None, got {name!r}.'
        raise ValueError(msg)


def needs_cupy() -> NoReturn:
    """Raise the error for a decoder on a GPU where CuPy is not installed."""
    msg = (
        "`device=\"cuda\"` needs CuPy; run `python -m pip install 'linkern[cuda13]'`, "
        "or 'linkern[cuda12]'."
    )
    raise ModuleNotFoundError(msg, name="cupy")


def no_window(window: Any) -> None:
    """Check that no window is passed to a decoder that adds every token at once."""
    if window is not None:
        msg = (
            f"`window` must be left out on a GPU, where every token is added to the "
            f"memory at once, got {window!r}."
        )
        raise ValueError(msg)


def token(
    name: str,
    x: Any,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    *,
    free: bool = False,
    library: str = "numpy",
) -> None:
    """Check one input of a step; if `free`, its last axis may have any size."""
    array_of(library, name, x)
    if x.dtype != dtype:
        msg = (
            f"`{name}` must have the dtype of this decoder, {dtype}, got {x.dtype}; "
            "say another one with `dtype=`."
        )
        raise TypeError(msg)
    last = x.shape[-1:] if free else shape[-1:]
    if x.ndim == 0 or x.shape != (*shape[:-1], *last):
        msg = f"`{name}` must have shape {shape}, got {x.shape}."
        raise ValueError(msg)


def output(
    out: Any,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    *,
    library: str = "numpy",
) -> None:
    """Check the array that receives an output."""
    plain = type(out) is np.ndarray if library == "numpy" else is_array(out)
    if not plain or namespace_name(out) != library or out.dtype != dtype:
        got = getattr(out, "dtype", type(out).__name__)
        if isinstance(out, np.ndarray) and not plain:
            got = f"a {type(out).__name__}; pass np.asarray(out)"
        elif is_array(out) and namespace_name(out) != library:
            got = f"one of {namespace_name(out)}"
        msg = f"`out` must be a {_SPELLED[library]} array of {dtype}, got {got}."
        raise TypeError(msg)
    if out.shape != shape:
        msg = f"`out` must have shape {shape}, got {out.shape}."
        raise ValueError(msg)
    if not getattr(out.flags, "writeable", True):  # CuPy has no others
        msg = "`out` must be writeable, got a read-only array; copy it first."
        raise ValueError(msg)


def sizes(batch: Any, key_dim: Any, value_dim: Any) -> tuple[tuple[int, ...], int, int]:
    """Return the sizes that are passed instead of a state."""
    if not isinstance(batch, tuple):
        msg = f"`batch_shape` must be a tuple of integers, got {batch!r}."
        raise TypeError(msg)
    for name, size in (("key_dim", key_dim), ("value_dim", value_dim)):
        if size is None:
            msg = f"`{name}` must be given when there is no `state` to take it from."
            raise ValueError(msg)
    return (
        validate.dimensions("batch_shape", batch),
        validate.dimension("key_dim", key_dim),
        validate.dimension("value_dim", value_dim),
    )


def sizes_of(
    state: Any,
    batch: Any,
    key_dim: Any,
    value_dim: Any,
    *,
    normalize: bool,
    library: str = "numpy",
) -> tuple[tuple[int, ...], int, int]:
    """Return the sizes of a state, after checking its parts against each other."""
    if (batch, key_dim, value_dim) != ((), None, None):
        msg = (
            "`batch_shape`, `key_dim` and `value_dim` must be left out when `state` is "
            "given; they are those of the state."
        )
        raise ValueError(msg)
    memory, normalizer = validate.state_parts("state", state)
    if (normalizer is not None) != normalize:
        has = "no normalizer" if normalizer is None else "a normalizer"
        msg = (
            "`state` must carry a normalizer exactly when `normalize` is True, got "
            f"{has} and `normalize={normalize}`."
        )
        raise ValueError(msg)
    array_of(library, "state.memory", memory)
    if memory.ndim < 2:
        msg = f"`state.memory` must have shape (..., K, V), got {memory.shape}."
        raise ValueError(msg)
    if normalizer is not None:
        array_of(library, "state.normalizer", normalizer)
        validate.home({"state.memory": memory, "state.normalizer": normalizer})
        if normalizer.shape != memory.shape[:-1]:
            msg = (
                f"`state.normalizer` must have shape {memory.shape[:-1]}, that of the "
                f"memory without its last axis, got {normalizer.shape}."
            )
            raise ValueError(msg)
    return memory.shape[:-2], memory.shape[-2], memory.shape[-1]


def token_dtype(
    dtype: Any, of_state: Any, known: tuple[str, ...] = _DTYPES
) -> np.dtype[Any]:
    """Return the dtype of the tokens: the one requested, or that of the state."""
    asked = dtype if dtype is not None else "float32" if of_state is None else of_state
    try:
        token_type = np.dtype(asked)
    except TypeError:
        token_type = None
    if token_type is None or token_type.name not in known:
        msg = f"`dtype` must be one of {', '.join(known)}, got {asked!r}."
        raise TypeError(msg)
    wide = np.result_type(token_type, np.float32)
    if of_state is not None and wide != of_state:
        msg = (
            f"`state` must have dtype {wide}, in which {token_type} tokens are "
            f"accumulated, got {of_state}."
        )
        raise TypeError(msg)
    return np.dtype(token_type.name)  # the canonical object of NumPy
