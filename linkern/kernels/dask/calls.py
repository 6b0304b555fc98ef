"""Calls of an operator on Dask arrays: checks, and the graphs of its results."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import dask
from dask.base import tokenize

from linkern import validate
from linkern.array import broadcast_shapes
from linkern.autodiff.tape import joint, raw
from linkern.kernels.dask.backward import backward
from linkern.kernels.dask.checks import checked, filled_in, fitting_state
from linkern.kernels.dask.forward import Call, forward
from linkern.kernels.dask.layout import layout
from linkern.kernels.dask.spans import Span
from linkern.kernels.dispatch import Operator
from linkern.state import AttentionResult, State, as_state, mapped

__all__ = ["call"]


def call(
    operator: Operator, arguments: Mapping[str, Any]
) -> AttentionResult[Any] | None:
    """Return the result of an operator as Dask arrays; nothing is computed.

    Parameters
    ----------
    operator : Operator
        The operator.
    arguments : mapping of str to object
        Its inputs and options by name; arrays may be traced.

    Returns
    -------
    AttentionResult or None
        None for a single token of decoding, which the array code takes.
    """
    if not isinstance(arguments.get("form", "auto"), str):
        return None
    made, items = _planned(operator, arguments)
    output, memory, normalizer = joint(
        lambda *arrays: forward(made, arrays), partial(backward, made), items
    )
    return AttentionResult(output, State(memory, normalizer))


def _planned(
    operator: Operator, arguments: Mapping[str, Any]
) -> tuple[Call, list[Any]]:
    """Return a call, and its arrays: inputs, memory and normalizer."""
    options = dict(arguments)
    validate.whole_sequence(options)
    options.pop("cu_seqlens", None)
    state = options.pop("initial_state", None)
    inputs = {name: options.pop(name, None) for name in operator.axes}
    inputs = {name: x for name, x in inputs.items() if x is not None}
    plain = {name: raw(x) for name, x in inputs.items()}
    scan = validate.scan_of_blocks(
        dask.config.get("linkern.scan", "chain"),
        operator.name,
        affine=operator.span is not None,
    )
    ready = checked(operator, plain, options)
    state = as_state("initial_state", state, normalizer=ready.normalizer is not None)
    lead = tuple(ready.batch)
    if "query" in plain:
        lead = broadcast_shapes(lead, tuple(ready.inputs["query"].shape[:-2]))
    place = layout(plain, operator.axes, lead)
    if state is not None:
        ready.initial_state(mapped(raw, state))
        fitting_state(mapped(raw, state), ready, place)
    inputs |= filled_in(operator, plain, ready, place)
    items = [*inputs.values(), *((None, None) if state is None else state)]
    made = Call(
        operator.name,
        tokenize(operator.name, options, scan, *map(_name, items)),
        Span(operator.run, tuple(inputs), options, operator.span),
        place,
        tuple(operator.axes[name] for name in inputs),
        tuple(ready.batch),
        ready.state_shapes(ready.sizes),
        ready.sizes["v"],
        ready.dtype,
        ready.like.dtype,
        scan,
    )
    return made, items


def _name(x: Any) -> str | None:
    return None if x is None else raw(x).name
