"""Functions of JAX that are called as their users call them: under `jax.jit`.

JAX traces what is outside of a `jax.jit` at every call, and compiles its loops anew, so
a function that is not compiled as a whole takes many times as long. It is compiled for
every shape, where it can be traced and is no long program; elsewhere it is called as it
is.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from importlib import import_module
from math import inf
from typing import Any

__all__ = ["Compiled"]

# Operations of the largest program that is compiled: a scan over chunks has a hundred.
# An unrolled loop of 300 takes a second, its gradient three; of 2,200, a minute.
MOST_OPERATIONS = 200
# Programs of the same arrays that depend on other arguments, such as a position.
MOST_PROGRAMS = 8
# Arguments that a program may depend on, beside the shapes and dtypes of arrays.
_STATIC = (bool, int, float, str)

Function = Callable[..., Any]


class Compiled:
    """A function of JAX, compiled where it can be.

    Parameters
    ----------
    function : callable
        Of arrays, containers of them, and other arguments.
    again : callable
        Returns the function as it was loaded, without anything that it has kept.
    """

    def __init__(self, function: Function, again: Callable[[], Function]) -> None:
        self._jax = import_module("jax")
        self._function, self._again = function, again
        self._programs: dict[Hashable, Function | None] = {}
        self._of_arrays = Counter[Hashable]()
        self._untraceable = set[Any]()  # forms of arguments
        self._too_large: float = inf  # numbers in all arrays

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the compiled function, or the function itself."""
        leaves, form = self._jax.tree.flatten((args, kwargs))
        arrays = [x for x in leaves if isinstance(x, self._jax.Array)]
        rest = [x for x in leaves if not isinstance(x, self._jax.Array)]
        try:
            if all(isinstance(x, _STATIC) for x in rest):
                program = self._program(leaves, form)
                if program is not None:
                    return program(*arrays)
            return self._function(*args, **kwargs)
        except self._jax.errors.UnexpectedTracerError:
            # It keeps arrays from call to call, and has kept those of a trace.
            self._function, self._too_large = self._again(), 0
            self._programs.clear()
            return self._function(*args, **kwargs)

    def _program(self, leaves: list[Any], form: Any) -> Function | None:
        """Return the program for arguments of these types; None if there is none."""
        types = [
            self._jax.ShapeDtypeStruct(x.shape, x.dtype)
            if isinstance(x, self._jax.Array)
            else x
            for x in leaves
        ]
        key = form, *map(repr, types)
        if key not in self._programs:
            self._programs[key] = self._traced(types, form)
        return self._programs[key]

    def _traced(self, types: list[Any], form: Any) -> Function | None:
        arrays = [x for x in types if not isinstance(x, _STATIC)]
        size, alike = sum(x.size for x in arrays), (form, *map(repr, arrays))
        self._of_arrays[alike] += 1
        many = self._of_arrays[alike] > MOST_PROGRAMS
        if many or form in self._untraceable or size >= self._too_large:
            return None

        def function(*arrays: Any) -> Any:
            left = iter(arrays)
            leaves = [x if isinstance(x, _STATIC) else next(left) for x in types]
            args, kwargs = self._jax.tree.unflatten(form, leaves)
            return self._function(*args, **kwargs)

        program: Any = self._jax.jit(function)
        try:
            traced = program.trace(*arrays)
        except self._jax.errors.UnexpectedTracerError:
            raise
        except Exception as error:
            # Other errors are about these numbers, and are raised without it, too.
            of_tracers = isinstance(error, self._jax.errors.JAXTypeError)
            if of_tracers or "Tracer" in str(error):
                self._untraceable.add(form)
            return None
        if _operations(traced.jaxpr.jaxpr) > MOST_OPERATIONS:
            self._too_large = min(self._too_large, size)
            return None
        compiled: Function = program
        return compiled


def _operations(jaxpr: Any) -> int:
    """Return the number of operations of a program; those of a loop count once."""
    total = 0
    for equation in jaxpr.eqns:
        inner = [getattr(x, "jaxpr", x) for x in equation.params.values()]
        total += max(1, sum(_operations(x) for x in inner if hasattr(x, "eqns")))
    return total
