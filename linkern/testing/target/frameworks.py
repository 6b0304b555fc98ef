"""Convert NumPy arrays to a target's array library and back, bit for bit.

NumPy has no bfloat16 without `ml_dtypes`, so half-precision results travel back as
float32, which holds every one of their values exactly.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.testing.errors import UsageError
from linkern.testing.target.accelerators import (
    cuda_index,
    cupy_cuda,
    jax_cuda,
    jax_device,
    torch_cuda,
)
from linkern.testing.target.framework import Arrays, Framework, Undifferentiable
from linkern.testing.target.memory_layout import STYLES, byte_offset

__all__ = [
    "FRAMEWORKS",
    "as_numpy",
    "dtype_name",
    "framework_named",
    "keep_compiled",
    "numpy_dtype",
    "require_device",
]
# The first version of CuPy with the dtype.
_CUPY_OF_BFLOAT16 = 14
# Versions of JAX on the CPU whose fusions of several products return memory that was
# never written, and the flag that names the fusions: `docs/findings.md`.
_WITH_WRONG_FUSIONS = "0.10."
_FUSIONS = "--xla_cpu_experimental_ynn_fusion_type"


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
    try:
        return x.astype(np.float64 if x.dtype == np.float64 else np.float32)
    except (TypeError, ValueError):
        msg = f"an array of numbers is expected, got one of dtype {x.dtype}"
        raise TypeError(msg) from None


def _as_it_is(
    view: NDArray[Any], _base: NDArray[Any], _device: str
) -> tuple[Any, Callable[[], object]]:
    return view, lambda: None


def _numpy() -> Framework:
    return Framework(
        "numpy",
        ("float64", "float32", "float16", "bfloat16"),
        lambda x, _device: x.copy(),
        _widened,
        lambda x: type(x) is np.ndarray,
        wrap=_as_it_is,
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

    def overwrite(x: Any, contents: Any) -> None:
        # As a kernel does that is given the pointer: PyTorch counts no version.
        x.data.copy_(contents)

    def wrap(
        view: NDArray[Any], base: NDArray[Any], device: str
    ) -> tuple[Any, Callable[[], object]]:
        integers, dtype = f"int{8 * base.itemsize}", getattr(torch, base.dtype.name)
        if device == "cpu":
            return torch.from_numpy(view.view(integers)).view(dtype), lambda: None
        bits = torch.from_numpy(base.view(integers))
        memory = bits.to(device)
        strides = [stride // base.itemsize for stride in view.strides]
        first = byte_offset(view, base) // base.itemsize
        native = torch.as_strided(memory.view(dtype), view.shape, strides, first)
        return native, lambda: bits.copy_(memory)

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
        overwrite=overwrite,
        wrap=wrap,
        styles=tuple(style for style in STYLES if style != "reversed"),
        accelerator=torch_cuda(torch),
        gradients=gradients,
    )


def _jax() -> Framework:
    jax = import_module("jax")
    # float64 is off by default in JAX, and would be narrowed without a word.
    jax.config.update("jax_enable_x64", True)

    def to_native(x: NDArray[Any], device: str) -> Any:
        return jax.device_put(jax.numpy.asarray(x), jax_device(jax, device))

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
        accelerator=jax_cuda(jax),
        gradients=gradients,
    )


def keep_compiled(folder: str) -> None:
    """Let JAX, imported or not, look in a folder for what it has compiled before.

    A loop in a function that is not compiled itself is another program to JAX at every
    call, and is compiled anew; its text, by which the folder finds it, is the same.
    """
    settings = {
        "jax_compilation_cache_dir": folder,
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in settings.items():
        os.environ[name.upper()] = str(value)
        if "jax" in sys.modules:
            sys.modules["jax"].config.update(name, value)
    if find_spec("jaxlib") and version("jaxlib").startswith(_WITH_WRONG_FUSIONS):
        flags = os.environ.get("XLA_FLAGS", "").split()
        if not any(x.startswith(_FUSIONS) for x in flags):
            os.environ["XLA_FLAGS"] = " ".join([*flags, f"{_FUSIONS}="])


def _cupy() -> Framework:
    cupy = import_module("cupy")

    def to_native(x: NDArray[Any], device: str) -> Any:
        with cupy.cuda.Device(cuda_index(device)):
            return cupy.array(x)

    def wrap(
        view: NDArray[Any], base: NDArray[Any], device: str
    ) -> tuple[Any, Callable[[], object]]:
        memory = to_native(base, device)
        first = memory.data + byte_offset(view, base)
        native = cupy.ndarray(view.shape, base.dtype, first, view.strides)
        return native, lambda: np.copyto(base, cupy.asnumpy(memory))

    return Framework(
        "cupy",
        _cupy_dtypes(cupy),
        to_native,
        lambda x: _widened(cupy.asnumpy(x)),
        lambda x: isinstance(x, cupy.ndarray),
        wrap=wrap,
        styles=tuple(STYLES),
        accelerator=cupy_cuda(cupy),
    )


def _cupy_dtypes(cupy: Any) -> tuple[str, ...]:
    """Return the dtypes of CuPy, which has bfloat16 since version 14, by ml_dtypes."""
    half = ("bfloat16",) if find_spec("ml_dtypes") else ()
    new = int(cupy.__version__.partition(".")[0]) >= _CUPY_OF_BFLOAT16
    return ("float64", "float32", "float16", *(half if new else ()))


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
        framework.to_numpy(framework.to_native(np.ones(1, np.float32), device))
    except Exception as error:
        said = str(error).strip().partition("\n")[0].rstrip(".")
        remedy = (
            'name another with `device`, such as "cuda:0"'
            if device == "cpu"
            else "leave `device` out for the CPU, or run where there is such a device"
        )
        msg = f'{framework.name} has no device "{device}" ({said}); {remedy}.'
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
