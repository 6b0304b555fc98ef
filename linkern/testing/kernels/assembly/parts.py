"""Types and default parts that the assemblies share."""

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = [
    "CHUNK",
    "Array",
    "Change",
    "Counts",
    "Inputs",
    "Kernel",
    "State",
    "all_tokens",
    "rounded_to",
    "unchanged",
    "unit_rows",
    "wide",
]

# These kernels stand for code that nobody typed.
Array = Any
State = Any
Inputs = dict[str, Any]
Kernel = Callable[..., Any]
Change = Callable[[Any], Any]
# First token, length and full size of a chunk, to how often each of its tokens counts.
Counts = Callable[[int, int, int], Array]

CHUNK = 16


def unchanged(x: Any, *context: Any) -> Any:
    """Return the first argument; others are there for defective parts."""
    del context
    return x


def all_tokens(first: int, length: int, chunk: int) -> Array:
    """Count each token of a chunk once."""
    del first, chunk
    return np.ones(length)


def wide(x: Array) -> Array:
    """Return an array in float32 or wider; None for None."""
    return None if x is None else x.astype(np.result_type(x.dtype, np.float32))


def rounded_to(bits: int) -> Change:
    """Return a rounding to nearest with `bits` significand bits."""

    def rounded(x: Array) -> Array:
        mantissa, exponent = np.frexp(x)
        kept = np.rint(mantissa * 2.0**bits)
        return np.ldexp(kept, exponent - bits).astype(np.asarray(x).dtype, copy=False)

    return rounded


def unit_rows(eps: float, *, outside: bool = False) -> Callable[[Inputs], Inputs]:
    """Return a change of inputs that divides queries and keys by their L2 norms.

    `eps` is added to the sum of squares, or to the norm if it is `outside` the root.
    """

    def unit(x: Array) -> Array:
        x = wide(x)
        squares = (x * x).sum(-1, keepdims=True)
        plus = np.asarray(eps, x.dtype)
        return x / (np.sqrt(squares) + plus if outside else np.sqrt(squares + plus))

    def inputs(call: Inputs) -> Inputs:
        return {n: unit(x) if n in ("query", "key") else x for n, x in call.items()}

    return inputs
