"""Choice of a back end by the library of the arrays: one look-up in one table.

A back end is a module with a constant ``BACKEND``. It is imported when the first array
of its library arrives, so that a call on NumPy arrays never loads or asks CUDA code.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol

from linkern.array import is_traced, namespace_name
from linkern.core.recurrence import Terms
from linkern.state import AttentionResult, State
from linkern.typing import Array

__all__ = [
    "OPERATORS",
    "Backend",
    "Operator",
    "Recurrence",
    "backend_of",
    "by_heads",
    "whole_call",
]


class Recurrence(Protocol):
    """The recurrence in one form."""

    def __call__(
        self,
        memory: Array,
        terms: Terms,
        *,
        size: int | None,
        scale: float | None,
        check_gates: bool = False,
    ) -> tuple[Array, Array] | None:
        """Return the read-out and the last memory; None for unsupported terms.

        `size` is that of chunks that was asked for; None lets the back end choose.
        Gates that nobody has looked at come with `check_gates`, to a back end that
        reads terms as they were given.
        """


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
    reads_as_given : frozenset of str
        Forms whose recurrence reads terms as they were given: float16 and bfloat16,
        with a `beta`, and with gates that nobody has looked at. It applies a scale to
        the read-out, and refuses gates outside of their range if `check_gates`.
    token, attend_token : callable, optional
        The recurrence and `attend` of a single token, of arrays that are not traced and
        that nothing has to be done with: see `linkern.kernels.numpy.one_token`.
    rotated : callable, optional
        Rotation by angles that add up, of arrays that are not traced: see
        `linkern.kernels.numpy.rotation`.
    by_heads : callable, optional
        Operators of several passes in threads that share the heads, of arrays that are
        not traced: see `linkern.kernels.numpy.by_heads`.
    """

    recurrences: Mapping[str, Recurrence]
    attend: Callable[..., tuple[Array, Array, Array | None]]
    attends: frozenset[tuple[str, bool]]
    applies: Callable[[Any], bool]
    reads_as_given: frozenset[str] = field(default_factory=frozenset)
    token: Callable[[Array, Terms], tuple[Array, Array]] | None = None
    attend_token: Callable[..., tuple[Array, Array, Array | None]] | None = None
    rotated: Callable[[Any, Any, Any], tuple[Any, list[Any]]] | None = None
    by_heads: Callable[..., tuple[Any, Any]] | None = None


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


def by_heads(
    attend: Callable[..., tuple[Array, State]], state: State, inputs: Mapping[str, Any]
) -> tuple[Array, State]:
    """Return ``attend(state, **inputs)``; a back end may call it for some heads each.

    Parameters
    ----------
    attend : callable
        Computes each head from its part of the arrays alone.
    state : State
        State before the first token.
    inputs : mapping of str to array or None
        With the same leading axes as the state, and two of their own.
    """
    backend = None
    if not is_traced(*state, *inputs.values()):
        backend = backend_of(state.memory)
    if backend is None or backend.by_heads is None:
        return attend(state, **inputs)
    return backend.by_heads(attend, state, inputs)


@dataclass(frozen=True)
class Operator:
    """An operator, for back ends that take whole calls.

    Parameters
    ----------
    name : str
        Name of the operator.
    axes : mapping of str to str
        Letters of the last axes of each input.
    required : tuple of str
        Inputs that must not be None; the output has the dtype of the first.
    run : callable
        From all arguments by name to the result, on the arrays as they are. It can be
        pickled.
    prepare : callable
        ``prepare(inputs, options, scale=, form=, chunk_size=)`` checks the arguments of
        a call, and returns the `Prepared` one of `linkern.operators.definition`.
    span : callable or None
        From the arguments to the affine map of the state that the tokens are, a
        `linkern.SpanMap`; the query does not matter. None if they are no such map.
    """

    name: str
    axes: Mapping[str, str]
    required: tuple[str, ...]
    run: Callable[[Mapping[str, Any]], AttentionResult[Any]]
    prepare: Callable[..., Any]
    span: Callable[[Mapping[str, Any]], Any] | None


OPERATORS: dict[str, Operator] = {}  # by name; operators register


def whole_call(name: str, arguments: Mapping[str, Any]) -> AttentionResult[Any] | None:
    """Return the result of a call by a back end that takes whole calls.

    None if there is no such back end for the arrays, or it does not take this call.
    """
    operator = OPERATORS[name]
    x = arguments.get(operator.required[0])
    package = type(getattr(x, "untraced", x)).__module__.partition(".")[0]
    if package == "torch":
        return _on_tensors(operator, arguments)
    return _on_blocks(operator, arguments) if package == "dask" else None


def _on_tensors(
    operator: Operator, arguments: Mapping[str, Any]
) -> AttentionResult[Any] | None:
    # The compiler of PyTorch refuses `import_module`.
    from linkern.kernels.torch.bridge import attend  # noqa: PLC0415

    return attend(operator, arguments)


def _on_blocks(
    operator: Operator, arguments: Mapping[str, Any]
) -> AttentionResult[Any] | None:
    made: AttentionResult[Any] | None
    made = import_module("linkern.kernels.dask.calls").call(operator, arguments)
    return made
