"""Arguments of a function of CUDA C++: arrays of files, numbers from their shapes."""

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from linkern.testing.emulator.source import blanked, closing, pieces
from linkern.testing.errors import UsageError

__all__ = ["Binding", "Entry", "binding", "entry_of", "evaluated", "named_axes"]

Number = int | float
_BINDING = re.compile(r"(\w+)(?:=(\w+))?(?:\[([^\]]*)\])?(\?)?")
_OPERATIONS: dict[type, Callable[..., Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
}
_FUNCTIONS: dict[str, Callable[..., Number]] = {
    "max": max,
    "min": min,
    "ceil": math.ceil,
    "sqrt": math.sqrt,
}


@dataclass(frozen=True)
class Entry:
    """A function of the source, and the names of its parameters.

    Parameters
    ----------
    name : str
        Its name as C++ calls it: with namespaces and template arguments.
    parameters : tuple of str
        Names of its parameters in order.
    kernel : bool
        True for a kernel, False for a function of the host that launches.
    """

    name: str
    parameters: tuple[str, ...]
    kernel: bool


@dataclass(frozen=True)
class Binding:
    """A parameter, the tensor that it reads or writes, and the axes of the tensor.

    Parameters
    ----------
    parameter, tensor : str
        Names of both.
    axes : tuple of str or None
        Names of axes for what is read, numbers or expressions for what is written.
    optional : bool
        True if the parameter is a null pointer where the tensor is not there.
    """

    parameter: str
    tensor: str
    axes: tuple[str, ...] | None
    optional: bool = False


def entry_of(text: str, name: str) -> Entry:
    """Return a function that a source defines.

    Raises
    ------
    UsageError
        If there is none of that name.
    """
    code = blanked(text)
    plain = name.split("<", maxsplit=1)[0].rsplit("::", maxsplit=1)[-1].strip()
    for match in re.finditer(rf"\b{re.escape(plain)}\s*\(", code):
        last = closing(code, match.end() - 1)
        if not re.match(r"\s*\{", code[last + 1 :]):
            continue
        before = re.split(r"[;}]", code[: match.start()])[-1]
        listed = [x for x in pieces(code[match.end() : last]) if x.strip() != ""]
        names = tuple(_parameter(x) for x in listed if x.strip() != "void")
        return Entry(name, names, "__global__" in before)
    code = re.sub(r"__launch_bounds__\s*\([^()]*\)", "", code)
    kernels = sorted(set(re.findall(r"__global__[^(;]*?(\w+)\s*\(", code)))
    known = ", ".join(f"`{kernel}`" for kernel in kernels) or "none"
    msg = (
        f"`--entry` must name a function that the file defines, got `{name}`; its "
        f"kernels are: {known}."
    )
    raise UsageError(msg)


def _parameter(declaration: str) -> str:
    match = re.search(
        r"(\w+)\s*(?:\[\s*\])?\s*$", declaration.split("=", maxsplit=1)[0]
    )
    if match is None:
        msg = f"the parameter `{declaration.strip()}` must have a name; give it one."
        raise UsageError(msg)
    return match[1]


def binding(option: str, text: str) -> Binding:
    """Return a binding from ``PARAMETER=TENSOR[AXES]``; `option` is for the message."""
    match = _BINDING.fullmatch("".join(text.split()))
    if match is None:
        msg = (
            f"`{option}` must be PARAMETER=TENSOR[AXES], such as q=query[B,H,T,K], "
            f"got {text!r}."
        )
        raise UsageError(msg)
    parameter, tensor, axes, optional = match.groups()
    names = None if axes is None else tuple(axes.split(",")) if axes else ()
    return Binding(parameter, tensor or parameter, names, optional is not None)


def named_axes(
    bindings: Sequence[Binding], shapes: Mapping[str, Sequence[int]]
) -> dict[str, Number]:
    """Return the size of every axis that a binding names.

    Raises
    ------
    UsageError
        If a tensor has other axes, or one name stands for two sizes.
    """
    sizes: dict[str, Number] = {}
    for one in bindings:
        shape = shapes.get(one.tensor)
        if one.axes is None or shape is None:
            continue
        if len(shape) != len(one.axes):
            msg = (
                f"`{one.tensor}` must have the axes [{', '.join(one.axes)}] that "
                f"`--read` names, got the shape {tuple(shape)}."
            )
            raise UsageError(msg)
        for axis, size in zip(one.axes, shape, strict=True):
            if sizes.setdefault(axis, size) != size:
                msg = (
                    f"axis {axis} of `{one.tensor}` must have the size {sizes[axis]} "
                    f"as before, got {size}; name it otherwise."
                )
                raise UsageError(msg)
    return sizes


def evaluated(text: str, names: Mapping[str, Number]) -> Number:
    """Return the value of arithmetic on sizes of axes.

    Examples
    --------
    >>> evaluated("4 * K + max(T, 8)", {"K": 3, "T": 5})
    20
    >>> evaluated("K ** -0.5", {"K": 4})
    0.5
    """
    try:
        value: Number = _value(ast.parse(text.strip(), mode="eval").body, names)
    except (SyntaxError, TypeError, ValueError, ArithmeticError, KeyError) as error:
        known = ", ".join(names) or "none"
        msg = (
            f"`{text}` must be arithmetic on numbers and named sizes ({known}), but: "
            f"{type(error).__name__} {error}."
        )
        raise UsageError(msg) from None
    return value


def _value(node: ast.expr, names: Mapping[str, Number]) -> Any:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=name):
            return names[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATIONS[type(op)](_value(left, names), _value(right, names))
        case ast.UnaryOp(op=op, operand=operand):
            return _OPERATIONS[type(op)](_value(operand, names))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return _FUNCTIONS[name](*(_value(x, names) for x in args))
    msg = f"`{ast.unparse(node)}` is no arithmetic"
    raise ValueError(msg)
