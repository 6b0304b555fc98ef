"""Infer the array library of a target from its type, its annotations and its module.

This runs in the process of the target, and imports no library: what a target uses, its
module has imported.
"""

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from types import CodeType, FunctionType, ModuleType
from typing import Any, get_args

__all__ = ["Inferred", "infer", "library_of"]

# The library whose arrays are meant, by the package in which a type or module lives.
_LIBRARIES = {
    "numpy": "numpy",
    "array_api_strict": "array_api_strict",
    "torch": "torch",
    "triton": "torch",
    "jax": "jax",
    "jaxlib": "jax",
    "flax": "jax",
    "equinox": "jax",
    "cupy": "cupy",
}
_OF_TYPE = "it is a "
_WORD = re.compile(r"[A-Za-z_][\w.]*")


@dataclass(frozen=True)
class Inferred:
    """Array library that a target seems to take, and the evidence.

    Parameters
    ----------
    name : str
        Import name of the library: ``numpy`` if nothing else is known.
    reason : str
        The evidence; empty if there is none.
    others : tuple of str
        Installed libraries that the module of the target uses too.
    """

    name: str
    reason: str = ""
    others: tuple[str, ...] = ()

    @property
    def compiled(self) -> bool:
        """True if the type of the target says that JAX has compiled it."""
        return self.reason.startswith(_OF_TYPE) and "jaxlib" in self.reason


def infer(target: Any) -> Inferred:
    """Return the array library of a target.

    Parameters
    ----------
    target : callable
        A function, a module of PyTorch, a compiled function of JAX, a partial.

    Returns
    -------
    Inferred
        The library of its type, or else the only one that its annotations name, or else
        the only one that its code uses.

    Examples
    --------
    >>> def kernel(query: "np.ndarray", key: "np.ndarray", value: "np.ndarray"): ...
    >>> infer(kernel).name
    'numpy'
    """
    while isinstance(target, partial):
        target = target.func
    of_type = _of_type(target)
    if of_type is not None:
        return of_type
    function = _function_of(target)
    if function is None:
        return Inferred("numpy")
    annotated = dict.fromkeys(_annotated(function))
    if len(annotated) == 1:
        (name,) = annotated
        return Inferred(name, f"the annotations of {function.__name__}")
    used = dict.fromkeys(_used(function))
    if len(used) == 1:
        (name,) = used
        return Inferred(name, f"{function.__name__} uses {name}")
    others = (*annotated, *used, *_imported(function))
    possible = (n for n in dict.fromkeys(others) if n != "numpy" and find_spec(n))
    return Inferred("numpy", others=tuple(possible))


def library_of(package: str) -> str | None:
    """Return the array library that a package belongs to; None for all others."""
    return _LIBRARIES.get(package.partition(".")[0])


def _of_type(target: Any) -> Inferred | None:
    """Return the library that the type of a target belongs to, functions aside."""
    for owner in (target, getattr(target, "__self__", None)):
        for kind in type(owner).__mro__[:-1]:
            name = library_of(kind.__module__)
            if name is not None:
                kind_name = f"{kind.__module__}.{kind.__qualname__}"
                return Inferred(name, f"{_OF_TYPE}{kind_name}")
    return None


def _function_of(target: Any) -> FunctionType | None:
    """Return the Python function behind a target, if there is one."""
    for candidate in (target, type(target).__call__):
        function = inspect.unwrap(getattr(candidate, "__func__", candidate))
        if isinstance(function, FunctionType):
            return function
    return None


def _annotated(function: FunctionType) -> Iterator[str]:
    """Yield the libraries that annotations name."""
    for annotation in function.__annotations__.values():
        for named in _types_in(annotation, function):
            package = (
                named.__name__
                if isinstance(named, ModuleType)
                else getattr(named, "__module__", None)
            )
            name = library_of(package) if isinstance(package, str) else None
            if name is not None:
                yield name


def _types_in(annotation: Any, function: FunctionType) -> Iterator[Any]:
    """Yield the types and modules that an annotation mentions."""
    if isinstance(annotation, str):
        for word in _WORD.findall(annotation):
            yield function.__globals__.get(word.partition(".")[0])
        return
    yield annotation
    for inner in get_args(annotation):
        yield from _types_in(inner, function)


def _imported(function: FunctionType) -> Iterator[str]:
    """Yield the libraries of which the module of a function holds a module."""
    for held in function.__globals__.values():
        name = library_of(held.__name__) if isinstance(held, ModuleType) else None
        if name is not None:
            yield name


def _used(function: FunctionType) -> Iterator[str]:
    """Yield the libraries whose names a function uses, or a function that it calls."""
    waiting, seen = [function], set[FunctionType]()
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        for named in _names_in(current.__code__):
            held = current.__globals__.get(named)
            package = (
                held.__name__
                if isinstance(held, ModuleType)
                else getattr(held, "__module__", None)
            )
            name = library_of(package) if isinstance(package, str) else None
            if name is not None:
                yield name
            called = inspect.unwrap(held) if callable(held) else None
            if isinstance(called, FunctionType) and (
                called.__globals__ is function.__globals__
            ):
                waiting.append(called)


def _names_in(code: CodeType) -> Iterator[str]:
    """Yield the global names in a code object, and in those inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
