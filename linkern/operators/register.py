"""The decorator of the operators, their options, and the registry.

A module of operators writes the signature and the docstring of a function; its body and
the paragraphs of the docstring that are the same for all operators follow from the
record.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any, Generic, ParamSpec, TypedDict, TypeVar, cast

from linkern import validate
from linkern.autodiff.vjp import DIFFERENTIATED, gradients_of
from linkern.kernels.dispatch import OPERATORS, Operator
from linkern.operators.definition import (
    OPTIONS,
    Definition,
    prepare,
    run,
    run_arrays,
)
from linkern.operators.docstrings import completed
from linkern.operators.spans import span_of
from linkern.state import AttentionResult, State
from linkern.typing import ArrayT

__all__ = [
    "DEFINITIONS",
    "Options",
    "bound",
    "definition_of",
    "known_definition",
    "operator",
]

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

DEFINITIONS: dict[str, Definition] = {}
# By the function itself: functions of users may have the name of an operator.
_OF_FUNCTIONS: dict[FunctionType, Definition] = {}


class Options(TypedDict, Generic[ArrayT], total=False):
    """Options of every operator, besides its inputs.

    Parameters
    ----------
    scale : float
        Factor on the query, dimensionless; each operator names its default.
    initial_state : State or array
        State of the tokens before these; an array is one without a normalizer.
        Default: no tokens.
    cu_seqlens : sequence or array of int
        Offsets of packed sequences, ``N + 1`` of them; states then have the sequences
        as first axis. Default: one sequence.
    form : {"auto", "recurrent", "chunkwise", "parallel"}
        Order of the sums. "auto" is "chunkwise", and CUDA kernels on arrays of CuPy. On
        tensors of PyTorch on a CPU "auto" and "recurrent" run NumPy's kernels, the
        others operations of PyTorch.
    chunk_size : int
        Tokens per chunk of the chunkwise form. Default 64, on NumPy 32. Kernels have
        their own.
    """

    scale: float | None
    initial_state: State[ArrayT] | ArrayT | None
    cu_seqlens: Any
    form: str
    chunk_size: int | None


def operator(
    definition: Definition,
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Make an operator of a signature with a docstring, and register it."""

    def register(stub: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        signature = inspect.signature(stub)
        parameters = [
            p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD
        ]
        common = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
            for name, default in OPTIONS.items()
        ]
        shown = signature.replace(parameters=[*parameters, *common])
        defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        names, known = [p.name for p in parameters], shown.parameters
        run_operator = run

        def arguments(*args: Any, **options: Any) -> dict[str, Any]:
            """Return the arguments of a call by name, without defaults of `OPTIONS`."""
            validate.keywords(definition.name, options, known)
            stub(*args, **options)  # its body is empty: Python checks the arguments
            return {**defaults, **dict(zip(names, args, strict=False)), **options}

        def call(*args: Any, **options: Any) -> AttentionResult:
            return run_operator(definition, arguments(*args, **options))

        # A function of the stub's module, so that doctest and pickle find it there.
        made = FunctionType(
            call.__code__.replace(co_name=definition.name),
            stub.__globals__,
            definition.name,
            None,
            call.__closure__,
        )
        made.__qualname__ = made.__name__
        made.__module__ = stub.__module__
        made.__annotations__ = stub.__annotations__
        if stub.__doc__ is not None:  # as it is under `python -OO`
            made.__doc__ = completed(stub.__doc__, definition)
        made.__signature__ = shown  # type: ignore[attr-defined]
        made.arguments = arguments  # type: ignore[attr-defined]
        made.vjp = gradients_of(made)  # type: ignore[attr-defined]
        DEFINITIONS[definition.name] = _OF_FUNCTIONS[made] = definition
        DIFFERENTIATED[made] = frozenset((*definition.axes, "initial_state"))
        whole = Operator(
            *(definition.name, definition.axes, definition.required),
            partial(run_arrays, definition),
            partial(prepare, definition),
            partial(span_of, definition) if definition.affine else None,
        )
        OPERATORS[definition.name] = whole
        return cast("Callable[Parameters, Result]", made)

    return register


def known_definition(op: Any) -> Definition | None:
    """Return the record of an operator; None if it is none."""
    return _OF_FUNCTIONS.get(op) if isinstance(op, FunctionType) else None


def definition_of(op: Any) -> Definition:
    """Return the record of an operator; `TypeError` if it is none."""
    definition = known_definition(op)
    if definition is None:
        msg = (
            "`op` must be an operator, such as `linkern.kda`, got "
            f"{op!r}; known: {', '.join(sorted(DEFINITIONS))}."
        )
        raise TypeError(msg)
    return definition


def bound(
    op: Any, inputs: Sequence[Any], options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the inputs of a call by name, and its options."""
    axes = definition_of(op).axes
    arguments = op.arguments(*inputs, **options)
    arrays = {name: arguments.pop(name) for name in axes if name in arguments}
    return arrays, arguments
