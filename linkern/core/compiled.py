"""Parts that JAX compiles as one: the loop over spans and the triangular inverse.

A loop of Python is unrolled before it is compiled, which then takes as long as the
sequence is. `jax.lax.scan` compiles one step, whatever the length, and with
`jax.checkpoint` its gradient keeps the memories at the edges of spans only. Halves of
halves are many small kernels; a triangular solver is one.

Of the reference, this file and `linkern.core.derivatives` call JAX by name.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, cast

from linkern.array import concat, is_array, reshape
from linkern.typing import Array

__all__ = ["Step", "pullback", "scan", "unit_lower_inverse"]

Step = Callable[..., tuple[Array | None, Array]]


def pullback(function: Callable[..., Any], *arrays: Array) -> tuple[Any, Any]:
    """Return ``function(*arrays)`` and the function that pulls cotangents back."""
    return cast(tuple[Any, Any], import_module("jax").vjp(function, *arrays))


def unit_lower_inverse(strictly_lower: Array) -> Array:
    """Return ``(I + N)^{-1}`` for strictly lower triangular ``N (..., m, m)``."""
    numpy, linalg = map(import_module, ("jax.numpy", "jax.lax.linalg"))
    identity = numpy.eye(strictly_lower.shape[-1], dtype=strictly_lower.dtype)
    identity = numpy.broadcast_to(identity, strictly_lower.shape)
    solved = linalg.triangular_solve(
        strictly_lower, identity, left_side=True, lower=True, unit_diagonal=True
    )
    return cast(Array, solved)


def scan(
    step: Step,
    memory: Array,
    terms: Any,
    size: int,
    constants: Sequence[Array | None],
    *,
    counted: bool = False,
) -> tuple[Array | None, Array]:
    """Return the read-out and the last memory as `linkern.core.scan.scan` does."""
    if terms.key.shape[-2] <= size:
        return step(memory, terms, *((0,) if counted else ()), *constants)
    items = terms._asdict()
    arrays = {name: x for name, x in items.items() if is_array(x)}
    switches = tuple((name, x) for name, x in items.items() if name not in arrays)
    static = _Static(step, size, type(terms), switches, counted)
    memory = _varying_alike(memory, (*arrays.values(), *constants))
    # Compiled here, so that an eager call compiles once for each shape, not each time.
    result = _jitted()(static, memory, arrays, tuple(constants))
    return cast(tuple[Array | None, Array], result)


@dataclass(frozen=True)
class _Static:
    """All that a loop is compiled for, beside shapes and dtypes."""

    step: Step
    size: int
    # The named tuple of a span, and its items that are no arrays.
    terms: Callable[..., Any]
    switches: tuple[tuple[str, Any], ...]
    counted: bool


@cache
def _jitted() -> Callable[..., Any]:
    """Return the loop of JAX, compiled for each step and shape."""
    jax = import_module("jax")

    def looped(
        static: _Static,
        memory: Array,
        arrays: dict[str, Array],
        constants: tuple[Array | None, ...],
    ) -> tuple[Array | None, Array]:
        def one(
            memory: Array, span: tuple[dict[str, Array], Any]
        ) -> tuple[Array, Array | None]:
            rows, number = span
            terms = static.terms(**rows, **dict(static.switches))
            numbers = (number,) if static.counted else ()
            output, memory = static.step(memory, terms, *numbers, *constants)
            return memory, output

        size = static.size
        count, rest = divmod(arrays["key"].shape[-2], size)
        # Whole spans in one body; a shorter one after them is a second body, so that
        # no token has to be made up.
        whole = {n: _in_spans(x, count, size) for n, x in arrays.items()}
        memory, outputs = jax.lax.scan(
            jax.checkpoint(one, prevent_cse=False),
            memory,
            (whole, jax.numpy.arange(count)),
        )
        output = None if outputs is None else _in_rows(outputs)
        if rest:
            last = {n: x[..., count * size :, :] for n, x in arrays.items()}
            memory, tail = jax.checkpoint(one)(memory, (last, count))
            if output is not None and tail is not None:
                output = concat([output, tail], axis=-2)
        return output, memory

    return cast(Callable[..., Any], jax.jit(looped, static_argnums=0))


def _in_spans(x: Array, count: int, size: int) -> Array:
    """Return ``(..., T, D)`` as ``(count, ..., size, D)`` without what is left over."""
    numpy = import_module("jax.numpy")
    shape = (*x.shape[:-2], count, size, x.shape[-1])
    cut = reshape(x[..., : count * size, :], shape)
    return cast(Array, numpy.moveaxis(cut, -3, 0))


def _in_rows(spans: Array) -> Array:
    """Return ``(count, ..., size, D)`` as ``(..., count * size, D)``."""
    rows = import_module("jax.numpy").moveaxis(spans, 0, -3)
    *lead, count, size, dim = rows.shape
    return reshape(rows, (*lead, count * size, dim))


def _varying_alike(memory: Array, others: Sequence[Array | None]) -> Array:
    """Return the memory as an array that varies over a mesh as the others do.

    Inside `jax.shard_map`, zeros are the same on all devices, and what a span leaves is
    not: a loop wants one type of both. A condition on no number at all varies as its
    array, and is gone after compilation.
    """
    numpy = import_module("jax.numpy")
    flags = [numpy.any(x[..., :0] > 0) for x in others if x is not None]
    return cast(Array, numpy.where(sum(flags) > 0, memory, memory))
