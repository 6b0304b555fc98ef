"""Corrections of Triton's interpreter, where it differs from the compiled language.

Names imported from `triton.language` work in a kernel as its attributes do, the result
of a comparison is a truth value, functions of libdevice and the approximations of PTX
are those of NumPy, and a product may ask for any precision: it gets that of IEEE
arithmetic.
"""

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np

__all__ = ["install", "names_replaced"]

# Functions of libdevice by their names in C, without `__nv_`, `fast_` and a last `f`.
_LIBDEVICE: Mapping[str, Callable[..., Any]] = {
    **{
        name: getattr(np, name)
        for name in ("cos", "cosh", "exp", "exp2", "expm1", "fabs", "floor", "fmod")
    },
    **{
        name: getattr(np, name)
        for name in ("log", "log10", "log1p", "log2", "rint", "sin", "sinh", "sqrt")
    },
    **{name: getattr(np, name) for name in ("ceil", "tan", "tanh", "trunc", "fmax")},
    **{name: getattr(np, name) for name in ("copysign", "hypot", "fmin")},
    "acos": np.arccos,
    "asin": np.arcsin,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "erfc": np.vectorize(math.erfc, otypes=[np.float64]),
    "pow": np.power,
    "rsqrt": lambda x: 1 / np.sqrt(x),
}
# Functions of float32 that one instruction of PTX approximates, by its name there.
_APPROXIMATED: Mapping[str, Callable[..., Any]] = {
    "cos": np.cos,
    "ex2": np.exp2,
    "lg2": np.log2,
    "rcp": np.reciprocal,
    "rsqrt": _LIBDEVICE["rsqrt"],
    "sin": np.sin,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
}
_INSTRUCTION = re.compile(r"\s*(\w+)\.approx(?:\.ftz)?\.f32\s+\$0\s*,\s*\$1\s*;?\s*")


def install() -> None:
    """Correct comparisons and precisions of products; provide libdevice, and PTX."""
    interpreter: Any = import_module("triton.runtime.interpreter")
    language: Any = import_module("triton.language")
    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    compute = builder.binary_op

    def binary(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        result = compute(self, lhs, rhs, op)
        if result.data.dtype == np.bool_ and result.dtype != language.int1:
            return handle(result.data, language.int1)
        return result

    def external(
        self: Any, name: str, path: str, symbol: str, args: Any, kind: Any, pure: Any
    ) -> Any:
        del self, name, path, pure
        short = symbol.removeprefix("__nv_").removeprefix("fast_")
        function = _LIBDEVICE.get(short) or _LIBDEVICE.get(short.removesuffix("f"))
        if function is None:
            msg = f"{symbol} of libdevice"
            raise NotImplementedError(msg)
        with np.errstate(all="ignore"):
            result = function(*(x.data for x in args))
        dtype = kind.scalar
        return handle(np.asarray(result, interpreter._get_np_dtype(dtype)), dtype)

    def assembly(
        self: Any, code: str, constraints: str, args: Any, *others: Any
    ) -> SimpleNamespace:
        del self, constraints, others
        instruction = _INSTRUCTION.fullmatch(code)
        function = _APPROXIMATED.get(instruction[1]) if instruction else None
        if function is None:
            msg = f"the inline assembly `{' '.join(code.split())}`"
            raise NotImplementedError(msg)
        (x,) = args
        with np.errstate(all="ignore"):
            result = function(x.data.astype(np.float64)).astype(np.float32)
        return SimpleNamespace(get_result=lambda _: handle(result, language.float32))

    builder.create_inline_asm = assembly
    builder.binary_op = binary
    builder.create_extern_elementwise = external
    options = interpreter.interpreter_builder.options
    precisions = (*options.allowed_dot_input_precisions, "bf16x3", "bf16x6")
    object.__setattr__(options, "allowed_dot_input_precisions", precisions)
    _fill_libdevice(interpreter.interpreter_semantic)


def _fill_libdevice(semantic: Any) -> None:
    """Let the functions of libdevice, which the compiler replaces, be those of CUDA."""
    stubs: Any = import_module("triton.language.extra.libdevice")
    functions: Any = import_module("triton.language.extra.cuda.libdevice")
    for name in vars(stubs):
        function = getattr(functions, name, None)
        if callable(function) and not name.startswith("_"):
            setattr(stubs, name, partial(function, _semantic=semantic))


def names_replaced(module: dict[str, Any]) -> None:
    """Replace builtins of the language that a module has imported by their names."""
    language: Any = import_module("triton.language")
    semantic = import_module("triton.runtime.interpreter").interpreter_semantic
    for name, value in [*module.items()]:
        if callable(value) and language.core.is_builtin(value):
            module[name] = _interpreted(value, language, semantic)


def _interpreted(builtin: Any, language: Any, semantic: Any) -> Callable[..., Any]:
    """Return a builtin that runs in the interpreter."""
    name = builtin.__name__
    patched = getattr(language, name, None) is builtin

    def call(*args: Any, **keywords: Any) -> Any:
        if patched:  # the interpreter replaces this attribute in every launch
            return getattr(language, name)(*args, **keywords)
        return builtin(*args, **{**keywords, "_semantic": semantic})

    return call
