"""Choice of a back end by the library of the arrays: one look-up in one table.

A back end is a module with a constant ``BACKEND``. It is imported when the first array
of its library arrives, so that a call on NumPy arrays never loads or asks CUDA code.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol

from linkern.array import is_array, namespace_name
from linkern.core.recurrence import Terms
from linkern.typing import Array

__all__ = ["Backend", "Recurrence", "backend_of", "call_of"]


class Recurrence(Protocol):
    """The recurrence in one form."""

    def __call__(
        self, memory: Array, terms: Terms, *, size: int | None, scale: float | None
    ) -> tuple[Array, Array] | None:
        """Return the read-out and the last memory; None for unsupported terms."""


@dataclass(frozen=True)
class Backend:
    """Entry points for the arrays of one library; arrays may be traced.

    Parameters
    ----------
    recurrences : mapping of str to callable
        Recurrence for each form that the back end has.
    attend : callable
        Attention with a feature map and a normalizer, fused: see
        `linkern.kernels.numpy.forward.attend`.
    attends : frozenset of (str, bool)
        Forms that `attend` computes, each with the value of `causal`.
    applies : callable
        ``applies(feature_map)`` is True if `attend` can apply that feature map.
    reads_narrow : frozenset of str
        Forms whose recurrence reads float16 and bfloat16 terms, and applies a scale to
        the read-out.
    """

    recurrences: Mapping[str, Recurrence]
    attend: Callable[..., tuple[Array, Array, Array | None]]
    attends: frozenset[tuple[str, bool]]
    applies: Callable[[Any], bool]
    reads_narrow: frozenset[str] = field(default_factory=frozenset)


# Modules of the back ends, by the name of the array library.
MODULES = {
    "numpy": "linkern.kernels.numpy.backend",
    "cupy": "linkern.kernels.cuda.backend",
}
BACKENDS: dict[type, Backend | None] = {}  # by the type of an array, once it was met


def backend_of(x: Array) -> Backend | None:
    """Return the back end for the library of an array; None if there is none."""
    kind = type(getattr(x, "untraced", x))
    if kind not in BACKENDS:
        module = MODULES.get(namespace_name(x))
        BACKENDS[kind] = None if module is None else import_module(module).BACKEND
    return BACKENDS[kind]


# Modules with a function ``call`` that runs an operator as a whole, for libraries whose
# arrays are divided.
WHOLE_CALLS = {"dask": "linkern.kernels.dask.calls"}
CALLS: dict[type, Callable[..., Any] | None] = {}  # as `BACKENDS`


def call_of(x: Any) -> Callable[..., Any] | None:
    """Return how the library of an array runs whole calls; None for most, and for None.

    What it returns is ``call(definition, arguments, run, prepare)``; see
    `linkern.kernels.dask.calls.call`.
    """
    x = getattr(x, "untraced", x)
    kind = type(x)
    if kind not in CALLS:
        module = WHOLE_CALLS.get(namespace_name(x)) if is_array(x) else None
        CALLS[kind] = None if module is None else import_module(module).call
    return CALLS[kind]
