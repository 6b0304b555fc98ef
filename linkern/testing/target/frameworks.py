"""Convert NumPy arrays to a target's array library and back, bit for bit.

NumPy has no bfloat16 without `ml_dtypes`, so half-precision results travel back as
float32, which holds every one of their values exactly.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.testing.errors import UsageError
from linkern.testing.target.memory_layout import STYLES

__all__ = [
    "FRAMEWORKS",
    "Framework",
    "Library",
    "Undifferentiable",
    "as_numpy",
    "dtype_name",
    "framework_named",
    "numpy_dtype",
    "require_device",
]

Arrays = list[Any]
# Function of the inputs, inputs, cotangents of its outputs -> the outputs and the
# gradients of the inputs, None for an input without influence.
Gradients = Callable[[Callable[..., Arrays], Arrays, Arrays], tuple[Arrays, Arrays]]


class Undifferentiable(Exception):  # noqa: N818 -- it says what the target is
    """The target has no gradients; the message says why."""


@dataclass(frozen=True)
class Library:
    """Facts about an array library for the process of the referee, which may lack it.

    Parameters
    ----------
    name : str
        Import name of the library.
    dtypes : tuple of str
        Floating dtypes it can be fed.
    compiles : bool
        True if operations are compiled anew for each shape.
    styles : tuple of str
        Supported memory layouts, from `memory_layout.STYLES`.
    differentiates : bool
        True if it differentiates by itself.
    """

    name: str
    dtypes: tuple[str, ...]
    compiles: bool = False
    styles: tuple[str, ...] = ()
    differentiates: bool = False


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
        True for a plain array of the library.
    mutable : bool
        True if arrays can be overwritten in place.
    compiles : bool
        True if operations are compiled anew for each shape.
    wrap : callable or None
        As `to_native`, but a view with the strides of the NumPy array.
    styles : tuple of str
        Supported memory layouts, from `memory_layout.STYLES`.
    devices : tuple of str
        Devices of its arrays; empty if they are not known in advance.
    gradients : callable or None
        ``gradients(function, inputs, cotangents)``: the values of a function that
        returns a list of arrays, and the gradients of its inputs, by automatic
        differentiation.
    """

    name: str
    dtypes: tuple[str, ...]
    to_native: Callable[[NDArray[Any], str], Any]
    to_numpy: Callable[[Any], NDArray[Any]]
    is_native: Callable[[Any], bool]
    mutable: bool = True
    compiles: bool = False
    wrap: Callable[[NDArray[Any], str], Any] | None = None
    styles: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    gradients: Gradients | None = None

    @property
    def library(self) -> Library:
        """Facts about it for the process of the referee."""
        differentiates = self.gradients is not None
        return Library(
            self.name, self.dtypes, self.compiles, self.styles, differentiates
        )


@contextmanager
def _differentiable(*refusals: str) -> Iterator[None]:
    """Turn the errors by which a library refuses to differentiate into one type.

    All other errors are faults of the target: a backward function that raises, or
    returns gradients of another shape.
    """
    try:
        yield
    except Exception as error:
        refused = any(words in str(error) for words in refusals)
        if not (refused or isinstance(error, NotImplementedError)):
            raise
        said = str(error).strip().splitlines() or ["it is not implemented"]
        raise Undifferentiable(said[0]) from error


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
    """Return a copy in float32 or float64: a target may change its own arrays."""
    return x.astype(np.float64 if x.dtype == np.float64 else np.float32)


def _numpy() -> Framework:
    return Framework(
        "numpy",
        ("float64", "float32", "float16", "bfloat16"),
        lambda x, _device: x.copy(),
        _widened,
        lambda x: type(x) is np.ndarray,
        wrap=lambda x, _device: x,
        styles=tuple(STYLES),
        devices=("cpu",),
    )


def _array_api_strict() -> Framework:
    xp = import_module("array_api_strict")
    return Framework(
        "array_api_strict",
        ("float64", "float32"),
        lambda x, _device: xp.asarray(x, copy=True),
        np.array,
        lambda x: isinstance(x, type(xp.ones(1))),
        devices=("cpu",),
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

    def wrap(x: NDArray[Any], device: str) -> Any:
        if x.dtype.name == "bfloat16":
            return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16).to(device)
        return torch.from_numpy(x).to(device)

    def gradients(
        function: Callable[..., Arrays], inputs: Arrays, cotangents: Arrays
    ) -> tuple[Arrays, Arrays]:
        leaves = [x.detach().clone().requires_grad_() for x in inputs]
        with _differentiable("grad", "differentia"), torch.enable_grad():
            outputs = function(*leaves)
        if not any(getattr(output, "requires_grad", False) for output in outputs):
            msg = "its output carries no gradient"
            raise Undifferentiable(msg)
        with _differentiable("inplace operation"):
            grads = torch.autograd.grad(outputs, leaves, cotangents, allow_unused=True)
        return outputs, list(grads)

    return Framework(
        "torch",
        ("float64", "float32", "float16", "bfloat16"),
        to_native,
        to_numpy,
        # A subclass may do as it likes, later.
        lambda x: type(x) in (torch.Tensor, torch.nn.Parameter),
        wrap=wrap,
        styles=tuple(style for style in STYLES if style != "reversed"),
        gradients=gradients,
    )


def _jax() -> Framework:
    jax = import_module("jax")
    # float64 is off by default in JAX, and would be narrowed without a word.
    jax.config.update("jax_enable_x64", True)

    def to_native(x: NDArray[Any], device: str) -> Any:
        return jax.device_put(jax.numpy.asarray(x), jax.devices(device)[0])

    def gradients(
        function: Callable[..., Arrays], inputs: Arrays, cotangents: Arrays
    ) -> tuple[Arrays, Arrays]:
        with _differentiable("differentia", "JVP", "VJP defined", "on traced array"):
            outputs, pullback = jax.vjp(lambda *xs: list(function(*xs)), *inputs)
            # PyTorch does this cast itself, where outputs are declared to be wider.
            pairs = zip(cotangents, outputs, strict=True)
            return outputs, list(pullback([x.astype(y.dtype) for x, y in pairs]))

    return Framework(
        "jax",
        ("float64", "float32", "float16", "bfloat16"),
        to_native,
        lambda x: _widened(np.array(x)),
        lambda x: isinstance(x, jax.Array),
        mutable=False,
        compiles=True,
        gradients=gradients,
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
    """Import an array library; raise `UsageError` if it is not installed."""
    if find_spec(name) is None:
        extra = {"cupy": "cuda12", "array_api_strict": "test"}.get(name, name)
        msg = (
            f'the framework "{name}" is not installed; run '
            f"`python -m pip install 'linkern[{extra}]'`."
        )
        raise UsageError(msg)
    return FRAMEWORKS[name]()


def require_device(framework: Framework, device: str) -> None:
    """Raise `UsageError` for a device on which a library cannot put an array."""
    if framework.devices and device not in framework.devices:
        known = ", ".join(framework.devices)
        msg = f'{framework.name} has no device "{device}"; it has {known}.'
        raise UsageError(msg)
    try:
        framework.to_native(np.ones(1, np.float32), device)
    except Exception as error:
        said = str(error).strip().partition("\n")[0]
        msg = f'{framework.name} has no device "{device}": {said}'
        raise UsageError(msg) from None


def as_numpy(x: Any) -> tuple[NDArray[Any], str]:
    """Return the numbers of an array of any known library, and the name of its dtype.

    Raises `UsageError` for anything else.
    """
    library = type(x).__module__.partition(".")[0].removesuffix("lib")
    if library not in FRAMEWORKS or not hasattr(x, "dtype"):
        kind = f"{type(x).__module__}.{type(x).__qualname__}"
        msg = f"an array of {', '.join(FRAMEWORKS)} is expected, got {kind}."
        raise UsageError(msg)
    return framework_named(library).to_numpy(x), dtype_name(x)


def dtype_name(x: Any) -> str:
    """Return the name of the dtype of an array, as NumPy has it."""
    return str(getattr(x.dtype, "name", x.dtype)).rpartition(".")[2]
