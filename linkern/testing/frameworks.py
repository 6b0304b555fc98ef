"""How NumPy arrays reach a target's array library and come back, bit for bit.

NumPy has no bfloat16 without `ml_dtypes`, so half-precision results travel back as
float32, which holds every one of their values exactly.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.testing.errors import UsageError

__all__ = ["FRAMEWORKS", "Framework", "framework_named", "numpy_dtype"]


@dataclass(frozen=True)
class Framework:
    """One array library.

    Parameters
    ----------
    name : str
        Import name of the library.
    dtypes : tuple of str
        Floating dtypes it can be fed.
    to_native, to_numpy : callable
        ``to_native(x, device)`` and its inverse, which also widens half precision.
    is_native : callable
        Whether an object is a plain array of the library.
    mutable : bool
        Whether arrays can be overwritten in place.
    compiles : bool
        Whether operations are compiled anew for each shape.
    """

    name: str
    dtypes: tuple[str, ...]
    to_native: Callable[[NDArray[Any], str], Any]
    to_numpy: Callable[[Any], NDArray[Any]]
    is_native: Callable[[Any], bool]
    mutable: bool = True
    compiles: bool = False


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype called `name`; bfloat16 comes from `ml_dtypes`."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        extension = import_module("ml_dtypes")
    except ImportError:
        msg = "bfloat16 needs ml_dtypes; run `python -m pip install ml_dtypes`."
        raise UsageError(msg) from None
    dtype: np.dtype[Any] = np.dtype(extension.bfloat16)
    return dtype


def _widened(x: NDArray[Any]) -> NDArray[Any]:
    return x if x.dtype == np.float64 else x.astype(np.float32)


def _numpy() -> Framework:
    return Framework(
        "numpy",
        ("float64", "float32", "float16", "bfloat16"),
        lambda x, _device: x.copy(),
        _widened,
        lambda x: type(x) is np.ndarray,
    )


def _array_api_strict() -> Framework:
    xp = import_module("array_api_strict")
    return Framework(
        "array_api_strict",
        ("float64", "float32"),
        lambda x, _device: xp.asarray(x, copy=True),
        np.array,
        lambda x: isinstance(x, type(xp.ones(1))),
    )


def _torch() -> Framework:
    torch = import_module("torch")

    def to_native(x: NDArray[Any], device: str) -> Any:
        if x.dtype.name == "bfloat16":
            # numpy() and from_numpy() do not know bfloat16; its 16 bits are the same.
            bits = torch.from_numpy(np.ascontiguousarray(x).view(np.int16).copy())
            return bits.view(torch.bfloat16).to(device)
        return torch.from_numpy(np.array(x)).to(device)

    def to_numpy(x: Any) -> NDArray[Any]:
        x = x.detach().resolve_conj().cpu()
        wide = x if x.dtype == torch.float64 else x.to(torch.float32)
        return np.array(wide.numpy())

    return Framework(
        "torch",
        ("float64", "float32", "float16", "bfloat16"),
        to_native,
        to_numpy,
        lambda x: isinstance(x, torch.Tensor),
    )


def _jax() -> Framework:
    jax = import_module("jax")
    # float64 is off by default in JAX, and would be narrowed without a word.
    jax.config.update("jax_enable_x64", True)

    def to_native(x: NDArray[Any], device: str) -> Any:
        return jax.device_put(jax.numpy.asarray(x), jax.devices(device)[0])

    return Framework(
        "jax",
        ("float64", "float32", "float16", "bfloat16"),
        to_native,
        lambda x: _widened(np.array(x)),
        lambda x: isinstance(x, jax.Array),
        mutable=False,
        compiles=True,
    )


def _cupy() -> Framework:
    cupy = import_module("cupy")
    return Framework(
        "cupy",
        ("float64", "float32", "float16"),
        lambda x, _device: cupy.asarray(x),
        lambda x: _widened(cupy.asnumpy(x)),
        lambda x: isinstance(x, cupy.ndarray),
    )


FRAMEWORKS: dict[str, Callable[[], Framework]] = {
    "numpy": _numpy,
    "array_api_strict": _array_api_strict,
    "torch": _torch,
    "jax": _jax,
    "cupy": _cupy,
}


@cache
def framework_named(name: str) -> Framework:
    """Import an array library; `UsageError` with the fix if it is not installed."""
    if find_spec(name) is None:
        extra = {"cupy": "cuda12", "array_api_strict": "test"}.get(name, name)
        msg = (
            f'the framework "{name}" is not installed; run '
            f"`python -m pip install 'linkern[{extra}]'`."
        )
        raise UsageError(msg)
    return FRAMEWORKS[name]()
