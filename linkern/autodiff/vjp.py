"""Vector-Jacobian products of operators: the result of a call and its pullback."""

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, overload

import numpy as np

from linkern import validate
from linkern.array import is_array, namespace_name
from linkern.autodiff.tape import Traced, cotangents, raw
from linkern.state import AttentionResult, State, as_state, mapped
from linkern.typing import Array, ArrayT

__all__ = ["DIFFERENTIATED", "Pullback", "differentiated", "gradients_of", "vjp"]

Pullback = Callable[..., dict[str, Any]]

# Names of the arguments that are differentiated, by the operator; operators register.
DIFFERENTIATED: dict[Callable[..., Any], frozenset[str]] = {}


@overload
def vjp(
    op: Callable[..., AttentionResult[Any]],
    query: ArrayT,
    *inputs: Any,
    **options: Any,
) -> tuple[AttentionResult[ArrayT], Pullback]: ...


@overload
def vjp(
    op: Callable[..., AttentionResult[Any]], **options: Any
) -> tuple[AttentionResult[Any], Pullback]: ...


def vjp(
    op: Callable[..., AttentionResult[Any]], *inputs: Any, **options: Any
) -> tuple[AttentionResult[Any], Pullback]:
    r"""Return the result of an operator, and its vector-Jacobian product.

    Parameters
    ----------
    op : callable
        An operator, such as `linkern.gla`; any function that computes with the array
        API and returns an `AttentionResult` will do.
    *inputs, **options
        What `op` is called with. Of an operator, its inputs and the arrays inside
        `initial_state` are differentiated; of another function every array, but no
        number (`float`, `numpy.float64`), and not `cu_seqlens`.

    Returns
    -------
    result : AttentionResult
        ``op(*inputs, **options)``.
    pullback : callable
        ``pullback(output_cotangent, state_cotangent=None)`` returns a dict from the
        names of the arguments to their gradients, of their shapes and dtypes; that of
        ``initial_state`` is a `State`, also if a plain array was passed for it. Either
        cotangent may be None for zero, and `state_cotangent` a plain array where a
        state is one memory. It can be called several times.

    Raises
    ------
    TypeError
        If `op` is no such function.
    TypeError, ValueError
        As `op`; from the pullback if a cotangent does not have the shape or the dtype
        of what it belongs to, and from a feature map that uses a function without a
        rule.

    Notes
    -----
    Reverse-mode differentiation of the forward code: the gradient of each form is its
    transpose. The inputs and the states at the edges of the spans of a form are kept as
    checkpoints; the backward pass recomputes one span at a time, so for ``"chunkwise"``
    the memory is linear in the length.
    Log-decays get the sum of exactly those pairs of tokens that they lie between, with
    no difference of large sums; where a log-decay is ``-inf`` its gradient is 0.

    Examples
    --------
    >>> import numpy as np, linkern
    >>> ones = np.ones((2, 1))
    >>> result, pullback = linkern.vjp(linkern.delta_rule, ones, ones, 3 * ones)
    >>> gradients = pullback(np.asarray([[0.0], [1.0]]))
    >>> gradients["value"][:, 0]
    array([0., 1.])
    """
    signature, name = _signature(op), getattr(op, "__name__", "`op`")
    validate.keywords(name, options, signature.parameters)
    called = signature.bind(*inputs, **options)
    function = op
    names = DIFFERENTIATED.get(op) if inspect.isfunction(op) else None
    if names is None:
        function = partial(_called, op)
        # The numbers of NumPy are arrays to the array API, and options to users.
        arguments = called.arguments.items()
        names = frozenset(k for k, x in arguments if not isinstance(x, np.generic))

    def call(arguments: dict[str, Any]) -> AttentionResult[Any]:
        called.arguments = arguments
        return function(*called.args, **called.kwargs)

    return differentiated(call, called.arguments, names)


def _signature(op: Any) -> inspect.Signature:
    """Return the signature of a function that may be differentiated."""
    try:
        return inspect.signature(op)
    except (TypeError, ValueError):  # not callable, or without a signature
        msg = (
            "`op` must be an operator, such as `linkern.gla`, or a function that "
            f"returns an `AttentionResult`, got {op!r}."
        )
        raise TypeError(msg) from None


def _called(op: Any, *inputs: Any, **options: Any) -> AttentionResult[Any]:
    """Return the result of a function of traced arrays that is no operator."""
    try:
        result: AttentionResult[Any] = op(*inputs, **options)
    except TypeError as error:
        if Traced.__name__ not in str(error):
            raise
        msg = f"`op` must compute with functions of the array API, got {op!r}: {error}"
        raise TypeError(msg) from error
    if not hasattr(result, "output") or not _is_state(getattr(result, "state", None)):
        got = raw(result)
        msg = (
            "`op` must return an `AttentionResult`, as operators such as `linkern.gla` "
            f"do, got {type(got).__name__} from {op!r}."
        )
        raise TypeError(msg)
    return result


def differentiated(
    call: Callable[[dict[str, Any]], AttentionResult[Any]],
    arguments: Mapping[str, Any],
    names: Collection[str] | None = None,
) -> tuple[AttentionResult[Any], Pullback]:
    """Return the result of a call, and its pullback, as `vjp` does.

    Parameters
    ----------
    call : callable
        From arguments by name to the result.
    arguments : mapping
        What to call it with.
    names : collection of str, optional
        Names of the arrays to differentiate by, which never are `cu_seqlens`. Default:
        those of all arrays.
    """
    leaves: dict[str, Any] = {}
    for name, x in arguments.items():
        # Offsets are integers, and no numbers that anything depends on smoothly.
        if name == "cu_seqlens" or (names is not None and name not in names):
            continue
        traced = _traced(x)
        if traced is not None:
            leaves[name] = traced
    made = call({**arguments, **leaves})
    result = AttentionResult(raw(made.output), mapped(raw, made.state))

    def pullback(
        output_cotangent: Array | None, state_cotangent: State | None = None
    ) -> dict[str, Any]:
        normalizer = made.state.normalizer is not None
        state = as_state("state_cotangent", state_cotangent, normalizer=normalizer)
        of_outputs = [output_cotangent, *_parts(state)]
        outputs = [made.output, *_parts(made.state)]
        named = ("output_cotangent", "state_cotangent", "state_cotangent")
        for name, x, output in zip(named, of_outputs, outputs, strict=True):
            if x is not None:
                _fits(name, x, raw(output))
        of_leaves = cotangents(outputs, of_outputs)
        gradients = {name: _collected(x, of_leaves) for name, x in leaves.items()}
        if "initial_state" in gradients:
            of_state = gradients["initial_state"]
            gradients["initial_state"] = as_state("", of_state, normalizer=False)
        return gradients

    return result, pullback


def gradients_of(op: Callable[..., AttentionResult]) -> Pullback:
    """Return the gradients of an operator as one function, as other people's are.

    That is what an operator has as its attribute ``vjp``, and `linkern verify` calls.
    """

    def gradients(
        output_cotangent: Array,
        initial_state: State | None = None,
        state_cotangent: State | None = None,
        **inputs: Any,
    ) -> dict[str, Any]:
        _, pullback = vjp(op, initial_state=initial_state, **inputs)
        return pullback(output_cotangent, state_cotangent)

    return gradients


def _traced(x: Any) -> Any:
    """Return what is to be differentiated as traced arrays; None for anything else."""
    if _is_state(x):
        # What is no array goes to the checks of the call as it is.
        if all(part is None or is_array(part) for part in _parts(x)):
            return mapped(lambda part: Traced(part, leaf=True), x)
    elif is_array(x):
        return Traced(x, leaf=True)
    return None


def _is_state(x: Any) -> bool:
    return hasattr(x, "memory") and hasattr(x, "normalizer")


def _parts(state: State | None) -> tuple[Any, Any]:
    return (None, None) if state is None else (state.memory, state.normalizer)


def _collected(x: Any, gradients: dict[int, Any]) -> Any:
    """Return the gradient of one argument, zeros if nothing depends on it."""
    if isinstance(x, State):
        return mapped(lambda part: _collected(part, gradients), x)
    gradient = gradients.get(x.serial)
    if gradient is None:
        return raw(x.__array_namespace__().zeros_like(x))
    return gradient


def _fits(name: str, x: Any, output: Any) -> None:
    """Check a cotangent against the output that it belongs to."""
    if not is_array(output):
        msg = f"`{name}` was given for something that is None."
        raise ValueError(msg)
    validate.wide_dtype(name, x)
    if namespace_name(x) != namespace_name(output) or x.dtype != output.dtype:
        msg = (
            f"`{name}` must be an array of {namespace_name(output)} and "
            f"{output.dtype}, got {namespace_name(x)} and {x.dtype}."
        )
        raise TypeError(msg)
    if tuple(x.shape) != tuple(output.shape):
        msg = f"`{name}` must have shape {tuple(output.shape)}, got {tuple(x.shape)}."
        raise ValueError(msg)
