"""The proved bound as one assertion, for people who keep tests of their own."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import Bounded
from linkern.oracle.operator import STATE_NAMES
from linkern.testing.checks.assertions import Comparison, compared
from linkern.testing.checks.values import CONFIDENCE
from linkern.testing.errors import UsageError
from linkern.testing.problems import expected
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.declarations import DECLARATIONS, nearest
from linkern.testing.spec.operators import OPERATORS, Operator
from linkern.testing.target.arguments import state_axes
from linkern.testing.target.frameworks import as_numpy, numpy_dtype
from linkern.testing.target.protocol import from_layout, to_layout
from linkern.testing.target.segments import leaves, state_parts

__all__ = ["OutOfBoundError", "assert_within_bound"]

_LAYOUTS = {4: "bhtd", 3: "htd", 2: "td"}
_STATE_PARTS = ("memory", "normalizer")


class OutOfBoundError(AssertionError):
    """A result that no order of summation can explain; the message shows the entry."""


def assert_within_bound(
    actual: Any,
    op: str,
    *inputs: Any,
    state: Any = None,
    gradients: Mapping[str, Any] | None = None,
    cotangent: Any = None,
    initial_state: Any = None,
    dtype: str | None = None,
    contract: Mapping[str, Any] | Contract | None = None,
    random_inputs: bool = False,
    **named: Any,
) -> None:
    """Require the results of a kernel to lie within the proved error bound.

    The bound replaces the tolerance of ``allclose``: it is what rounding can add up to
    in any order of summation, for these inputs and at the declared precision, entry by
    entry. A result outside of it is not the operator's.

    Parameters
    ----------
    actual : array (B, H, T, V) or None
        Output of the kernel, of any array library; None to judge the rest alone.
    op : str
        The operator, a key of `linkern.testing.OPERATORS`.
    *inputs : array
        What the kernel was given, in the order of the operator, of any array library:
        ``(B, H, T, .)``, or without batch, or without batch and heads.
    state : array or tuple of array, optional
        State after the last token: memory, and normalizer where the operator has one.
    gradients : mapping of str to array, optional
        Gradients by name of the input, ``initial_state`` among them; needs `cotangent`.
    cotangent : array (B, H, T, V), optional
        Cotangent of the output.
    initial_state : array or tuple of array, optional
        State before the first token. Default: no earlier tokens.
    dtype : str, optional
        Dtype of the inputs of the kernel; others are rounded to it first. Default: the
        dtype of the query.
    contract : Contract or mapping, optional
        Declarations of the kernel; undeclared means strictest.
    random_inputs : bool
        True for inputs that are independent random draws: rounding errors then grow
        with the root of their number, so the bound is much tighter.
    **named
        Inputs by name (``log_decay=`` or the field's ``g=``), and declarations
        (``scale=0.125``, ``layout="bthd"``, ``eps=1e-6``, ``state_dtype="bfloat16"``).

    Raises
    ------
    OutOfBoundError
        If an entry is outside of its bound, or if a shape or dtype is wrong. It is an
        `AssertionError`.
    UsageError
        If the operator, an input or a declaration is unknown or does not fit, or if no
        bound can be proved for these inputs.

    Notes
    -----
    The exact result is computed in float64, token by token, and its error is part of
    the bound. That takes seconds for thousands of tokens; short inputs find as much.
    Operators that erase have a bound for some hundred tokens only.

    Examples
    --------
    >>> import numpy as np
    >>> import linkern
    >>> from linkern.testing import assert_within_bound
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.normal(size=(3, 1, 2, 20, 4)).astype(np.float32)
    >>> result = linkern.retention(q, k, v)
    >>> assert_within_bound(result.output, "retention", q, k, v)
    >>> assert_within_bound(
    ...     result.output * np.float32(1.00001), "retention", q, k, v
    ... )  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    linkern.testing.bounds.OutOfBoundError: the output of retention is outside ...
    """
    operator = _operator(op)
    arrays, declared = _sorted(operator, inputs, named)
    declarations = _contract(contract, declared, arrays)
    declarations.require_of(operator)
    call = _call(operator, declarations, arrays, dtype, initial_state)
    confidence = CONFIDENCE if random_inputs else None
    if actual is not None:
        _require_output(actual, call, expected.output(call, confidence))
    if state is not None:
        _require_state(state, call)
    if gradients is not None:
        _require_gradients(gradients, cotangent, call, confidence)


def _operator(name: Any) -> Operator:
    if name not in OPERATORS:
        raise UsageError(nearest("operator", name, OPERATORS))
    return OPERATORS[name]


def _sorted(
    operator: Operator, inputs: tuple[Any, ...], named: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the inputs by their names, in the order of the operator; declarations."""
    if len(inputs) > len(operator.names):
        msg = (
            f"{operator.name} takes {len(operator.names)} inputs "
            f"({', '.join(operator.names)}), got {len(inputs)}."
        )
        raise UsageError(msg)
    arrays = dict(zip(operator.names, inputs, strict=False))
    names = {
        alias: one.name for one in operator.inputs for alias in (one.name, *one.aliases)
    }
    declared = {}
    for key, value in named.items():
        if key in names and names[key] not in arrays:
            arrays[names[key]] = value
        elif key in names:
            msg = f"`{names[key]}` is passed twice; pass it once."
            raise UsageError(msg)
        elif key in DECLARATIONS:
            declared[key] = value
        else:
            raise UsageError(
                nearest("input or declaration", key, {*names, *DECLARATIONS})
            )
    for one in operator.inputs:
        if arrays.get(one.name) is None and not one.optional:
            msg = f"`{one.name}` of {operator.name} is missing; pass the array."
            raise UsageError(msg)
    present = {n: arrays[n] for n in operator.names if arrays.get(n) is not None}
    return present, declared


def _contract(
    contract: Mapping[str, Any] | Contract | None,
    declared: Mapping[str, Any],
    arrays: Mapping[str, Any],
) -> Contract:
    """Return all declarations; the layout follows the axes of the inputs."""
    if isinstance(contract, Contract):
        contract = contract.declared()
    everything = {**(contract or {}), **declared}
    ndim = getattr(next(iter(arrays.values())), "ndim", None)
    if "layout" not in everything and ndim in _LAYOUTS:
        everything["layout"] = _LAYOUTS[ndim]
    return Contract.from_mapping(everything)


def _call(
    operator: Operator,
    contract: Contract,
    arrays: Mapping[str, Any],
    dtype: str | None,
    initial_state: Any,
) -> expected.OracleCall:
    """Return the call as the oracle takes it; refuse shapes that do not fit."""
    wide = {name: as_numpy(x) for name, x in arrays.items()}
    dtype = dtype or next(iter(wide.values()))[1]
    inputs = {}
    for name, (x, _) in wide.items():
        axes = operator.input(name).axes
        moved = from_layout(x, contract.layout, axes)
        if moved.ndim != len(axes):
            msg = (
                f"`{name}` must have the axes {_shown(axes, contract.layout)}, got "
                f"shape {x.shape}; declare another `layout` if that is meant."
            )
            raise UsageError(msg)
        inputs[name] = moved.astype(numpy_dtype(dtype))
    sizes = operator.sizes(inputs)
    for name, x in inputs.items():
        axes = operator.input(name).axes
        if x.shape != tuple(sizes[axis] for axis in axes):
            seen = ", ".join(f"{n} {a.shape}" for n, (a, _) in wide.items())
            msg = f"`{name}` must have the sizes of the other inputs, got {seen}."
            raise UsageError(msg)
    state = None
    if initial_state is not None:
        state = _state(initial_state, operator, contract, sizes, "initial_state")
        if len(state) < len(operator.state):
            msg = (
                f"`initial_state` of {operator.name} must be (memory, normalizer), got "
                "the memory alone; pass both."
            )
            raise UsageError(msg)
    return expected.OracleCall(operator, contract, dtype, inputs, initial_state=state)


def _shown(axes: str, layout: str) -> str:
    """Return the axes of an input in a layout, in capitals."""
    kept = [axis for axis in axes if axis not in "bhg" or _kept(axis, layout)]
    if layout == "bthd" and len(kept) > 2 and kept[0] == "b":
        kept[1], kept[2] = kept[2], kept[1]
    return f"({', '.join(kept).upper()})"


def _kept(axis: str, layout: str) -> bool:
    return ("b" if axis == "b" else "h") in layout


def _state(
    state: Any,
    operator: Operator,
    contract: Contract,
    sizes: dict[str, int],
    name: str,
) -> tuple[NDArray[np.float64], ...]:
    """Return the parts of a state with the axes of the operator, in float64."""
    arrays = [as_numpy(x)[0] for x in leaves(state) if x is not None]
    layout, state_layout = contract.layout, contract.state_layout
    parts = state_parts(arrays, operator, sizes, layout, state_layout)
    if parts is None:
        lead = state_axes(sizes, layout)
        shapes = " and ".join(str((*lead, *x)) for x in operator.state_shapes(sizes))
        msg = (
            f"`{name}` of {operator.name} must have the shapes {shapes} (memory, then "
            f"normalizer), got {' and '.join(str(x.shape) for x in arrays) or 'none'}."
        )
        raise UsageError(msg)
    return tuple(x.astype(np.float64) for x in parts)


def _require_output(actual: Any, call: expected.OracleCall, bounded: Bounded) -> None:
    got, dtype = as_numpy(actual)
    contract, sizes = call.contract, call.sizes
    shape = to_layout(np.empty([sizes[a] for a in "bgtv"]), contract.layout).shape
    subject = f"the output of {call.operator.name}"
    if got.shape != shape:
        msg = f"{subject} has shape {got.shape}, it must have {shape}"
        raise OutOfBoundError(msg)
    required = contract.output_dtype or call.dtype
    if dtype != required:
        msg = (
            f"{subject} has dtype {dtype}, it must have {required}; declare "
            f'`output_dtype="{dtype}"` if that is meant'
        )
        raise OutOfBoundError(msg)
    in_layout = Bounded(
        to_layout(bounded.output, contract.layout),
        to_layout(
            np.broadcast_to(bounded.bound, bounded.output.shape), contract.layout
        ),
    )
    _require(got.astype(np.float64), in_layout, required, subject)


def _require_state(state: Any, call: expected.OracleCall) -> None:
    operator, contract = call.operator, call.contract
    parts = _state(state, operator, contract, call.sizes, "state")
    precisions = contract.precisions(call.dtype)
    dtypes = (precisions.state, precisions.normalizer)
    pairs = zip(_STATE_PARTS, parts, expected.states(call), dtypes, strict=False)
    for name, got, bounded, dtype in pairs:
        stored = dtype or precisions.accumulator
        _require(got, bounded, stored, f"the {name} of {operator.name}")


def _require_gradients(
    gradients: Mapping[str, Any],
    cotangent: Any,
    call: expected.OracleCall,
    confidence: float | None,
) -> None:
    if cotangent is None:
        msg = "`gradients` need the `cotangent` of the output; pass it too."
        raise UsageError(msg)
    operator, layout = call.operator, call.contract.layout
    pulled = from_layout(as_numpy(cotangent)[0].astype(np.float64), layout)
    shape = tuple(call.sizes[axis] for axis in "bgtv")
    if pulled.shape != shape:
        msg = (
            f"`cotangent` must have the shape of the output, "
            f"{to_layout(np.empty(shape), layout).shape}, got {cotangent.shape}."
        )
        raise UsageError(msg)
    bounds = expected.gradients(call, pulled, confidence)
    names = {a: one.name for one in operator.inputs for a in (one.name, *one.aliases)}
    for alias, gradient in gradients.items():
        name = names.get(alias, alias)
        if name not in bounds:
            raise UsageError(nearest("gradient", alias, bounds))
        subject = f"the gradient of the {name} of {operator.name}"
        if name == STATE_NAMES[0]:
            parts = _state(gradient, operator, call.contract, call.sizes, alias)
            states = (bounds[n] for n in STATE_NAMES if n in bounds)
            for got, bounded in zip(parts, states, strict=False):
                _require(got, bounded, call.dtype, subject)
            continue
        x, dtype = as_numpy(gradient)
        got = from_layout(x, layout, operator.input(name).axes)
        if got.shape != bounds[name].output.shape or dtype != call.dtype:
            msg = (
                f"{subject} is {dtype} of shape {x.shape}, it must have the dtype "
                f"({call.dtype}) and the shape of the {name}"
            )
            raise OutOfBoundError(msg)
        _require(got.astype(np.float64), bounds[name], call.dtype, subject)


def _require(
    got: NDArray[np.float64], bounded: Bounded, dtype: str, subject: str
) -> None:
    """Raise with the first entry that is out of its bound, and with the worst."""
    seen = compared(got, bounded, dtype)
    wrong = np.argwhere(~seen.fine)
    if len(wrong):
        first = tuple(int(i) for i in wrong[0])
        outside = np.where(seen.fine, -1.0, seen.ratio)
        worst = np.unravel_index(int(outside.argmax()), got.shape)
        msg = (
            f"{subject} is outside of the proved bound at {len(wrong)} of {got.size} "
            f"entries\n{_entry('first', first, got, bounded, seen)}"
        )
        if tuple(worst) != first:
            place = tuple(int(i) for i in worst)
            msg += f"\n{_entry('worst', place, got, bounded, seen)}"
        raise OutOfBoundError(msg)
    unknown = got.size - int(np.count_nonzero(seen.known))
    if unknown:
        msg = (
            f"nothing is proved of {unknown} of {got.size} entries of {subject[4:]}: "
            "their bounds are infinite; use smaller or shorter inputs, or declare the "
            "precision of the kernel."
        )
        raise UsageError(msg)


def _entry(
    word: str,
    index: tuple[int, ...],
    got: NDArray[np.float64],
    bounded: Bounded,
    seen: Comparison,
) -> str:
    bound = float(np.broadcast_to(bounded.bound, got.shape)[index])
    return (
        f"  {word}  {list(index)}: got {float(got[index])!r}, expected "
        f"{float(bounded.output[index])!r} within {bound:.3g} "
        f"(error / bound: {seen.ratio[index]:.3g})"
    )
