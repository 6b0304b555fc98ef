"""Arithmetic of bfloat16 in Triton's interpreter: in float32, rounded to nearest even.

The interpreter keeps a bfloat16 as the 16 bits of an unsigned integer, computes with
those integers, and truncates a float32 where compiled kernels round it.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["install", "narrowed", "widened"]

# Methods of the builder that compute with floating-point numbers.
_UNARY = ("fneg", "cos", "sin", "exp", "exp2", "log", "log2", "floor", "ceil")
_ROOTS = ("sqrt", "precise_sqrt", "rsqrt", "erf")
_BINARY = ("fadd", "fsub", "fmul", "fdiv", "frem", "precise_divf", "approx_divf")
_EXTREMES = ("minimumf", "minnumf", "maximumf", "maxnumf", "clampf", "fma")
_ORDER = ("LT", "GT", "LE", "GE", "EQ", "NE")
_COMPARISONS = tuple(f"fcmp{kind}{order}" for kind in "OU" for order in _ORDER)
_QUIET = np.uint16(0x7FC0)


def widened(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return the numbers whose bfloat16 bits these are.

    Examples
    --------
    >>> widened(np.array([0x3F80, 0xC000], np.uint16))
    array([ 1., -2.], dtype=float32)
    """
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def narrowed(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the bits of the nearest bfloat16, of two the even one.

    Examples
    --------
    >>> [hex(n) for n in narrowed(np.array([1.9999, 1.00390625], np.float32))]
    ['0x4000', '0x3f80']
    """
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    even = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = ((bits + np.uint32(0x7FFF) + even) >> np.uint32(16)).astype(np.uint16)
    # The carry of a NaN would make it a zero; its upper bits are kept, and it is quiet.
    kept = (bits >> np.uint32(16)).astype(np.uint16) | _QUIET
    return np.where(np.isnan(x), kept, rounded)


def install() -> None:
    """Have the builder of the interpreter compute with the numbers, not their bits."""
    interpreter: Any = import_module("triton.runtime.interpreter")
    language: Any = import_module("triton.language")
    builder = interpreter.InterpreterBuilder
    for name in (*_UNARY, *_ROOTS, *_BINARY, *_EXTREMES, *_COMPARISONS):
        method = getattr(builder, f"create_{name}", None)
        if method is not None:
            wide = _in_float32(method, interpreter, language)
            setattr(builder, f"create_{name}", wide)
    builder.create_dot = _dot(builder.create_dot, interpreter, language)
    _install_casts(interpreter, language)
    _install_reductions(interpreter, language)


def _is_narrow(x: Any) -> bool:
    """Return True for a handle of bfloat16 numbers."""
    data = getattr(x, "data", None)
    return bool(getattr(data, "dtype", None) == np.uint16 and x.dtype.scalar.is_bf16())


def _wide(x: Any, interpreter: Any, language: Any) -> Any:
    """Return a handle in float32, if it is one of bfloat16; anything else as it is."""
    if not _is_narrow(x):
        return x
    return interpreter.TensorHandle(widened(x.data), language.float32)


def _narrow(x: Any, interpreter: Any, language: Any) -> Any:
    return interpreter.TensorHandle(narrowed(x.data), language.bfloat16)


def _in_float32(
    method: Callable[..., Any], interpreter: Any, language: Any
) -> Callable[..., Any]:
    """Return a method that computes bfloat16 in float32, and rounds its result."""

    def compute(self: Any, *args: Any) -> Any:
        if not any(map(_is_narrow, args)):
            return method(self, *args)
        result = method(self, *(_wide(x, interpreter, language) for x in args))
        if result.data.dtype == np.bool_:
            return result
        return _narrow(result, interpreter, language)

    return compute


def _dot(
    method: Callable[..., Any], interpreter: Any, language: Any
) -> Callable[..., Any]:
    """Return the product of matrices whose operands are widened."""

    def dot(self: Any, a: Any, b: Any, d: Any, *precision: Any) -> Any:
        a, b, wide = (_wide(x, interpreter, language) for x in (a, b, d))
        result = method(self, a, b, wide, *precision)
        return _narrow(result, interpreter, language) if _is_narrow(d) else result

    return dot


def _install_casts(interpreter: Any, language: Any) -> None:
    """Cast from and to bfloat16 by way of float32."""
    builder = interpreter.InterpreterBuilder
    cast, convert = builder.cast_impl, builder.create_fp_to_fp
    zero = interpreter._ir.ROUNDING_MODE.RTZ

    def casted(self: Any, x: Any, kind: Any) -> Any:
        x = _wide(x, interpreter, language)
        if not kind.scalar.is_bf16():
            return cast(self, x, kind)
        return _narrow(cast(self, x, language.float32), interpreter, language)

    def converted(self: Any, x: Any, kind: Any, rounding: Any) -> Any:
        if kind.scalar.is_bf16() and x.dtype.scalar.is_fp32() and rounding != zero:
            return _narrow(x, interpreter, language)
        return convert(self, x, kind, rounding)

    builder.cast_impl, builder.create_fp_to_fp = casted, converted


def _install_reductions(interpreter: Any, language: Any) -> None:
    """Reduce and scan bfloat16 in float32, and round the results."""
    operation = interpreter.ReduceScanOpInterface
    apply = operation.apply

    def wide(x: Any) -> Any:
        kind = language.float32
        if x.type.is_block():
            kind = x.type.with_element_ty(kind)
        return language.tensor(_wide(x.handle, interpreter, language), kind)

    def narrow(x: Any) -> Any:
        if not x.dtype.is_fp32():
            return x
        kind = language.bfloat16
        if x.type.is_block():
            kind = x.type.with_element_ty(kind)
        return language.tensor(_narrow(x.handle, interpreter, language), kind)

    def applied(self: Any, x: Any) -> Any:
        if not isinstance(x, tuple):
            return applied(self, (x,))[0]
        if not _is_narrow(x[0].handle):  # indices come after the numbers
            return apply(self, x)
        numbers = tuple(wide(y) if _is_narrow(y.handle) else y for y in x)
        return tuple(map(narrow, apply(self, numbers)))

    operation.apply = applied
