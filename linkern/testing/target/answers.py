"""Answers of a target that the referee can use, and the most that one can hold.

The process of a target is its own: what comes out of it has the right types, and may
say anything. Here it is held against the call, so that no law meets a shape, a dtype or
a name that it does not expect.
"""

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np

from linkern.testing.spec.operators import OPERATORS
from linkern.testing.target.child import crafted, printable
from linkern.testing.target.frameworks import FRAMEWORKS
from linkern.testing.target.inference import Inferred
from linkern.testing.target.memory_layout import STYLES
from linkern.testing.target.protocol import Call, Reply, TargetConfig, from_layout
from linkern.testing.target.segments import output_shape
from linkern.testing.target.wire import Limits
from linkern.testing.target.worker import Opened

__all__ = ["limits_of", "usable_opened", "usable_reply"]

# Bytes of a header; of arrays that are too large, which are replies, too.
_HEADER, _SPARE = 2**18, 2**26
# How many times as much as is needed, in bytes of the widest numbers.
_SLACK = 4 * 8
# More outputs than a call from several threads gives.
_THREADED = 100
# Dtypes in which results travel.
_WIDE = (np.dtype(np.float32), np.dtype(np.float64))

Record = TypeVar("Record", Inferred, Reply)


def limits_of(call: Call, config: TargetConfig) -> Limits:
    """Return the most bytes of a reply to a call."""
    operator = OPERATORS[config.op]
    sizes = operator.sizes(call.inputs)
    outputs = _THREADED if call.threads > 1 else 1
    output = math.prod(sizes[axis] for axis in "bgtv")
    heads = _sequences(sizes, call, config) * sizes["g"]
    state = sum(heads * math.prod(shape) for shape in operator.state_shapes(sizes))
    gradients = sum(x.size for x in call.inputs.values())
    numbers = outputs * output + state + gradients
    return Limits(header=_HEADER, arrays=_SPARE + _SLACK * numbers)


def usable_opened(opened: Opened) -> Opened:
    """Return the facts about a target, if all their names exist.

    Raises
    ------
    TargetDied
        If a library or a memory layout is unknown, or a parameter has no name.
    """
    library, inferred, interface = opened.library, opened.inferred, opened.interface
    parameters = (
        *interface.keywords,
        *interface.needed,
        *interface.inputs,
        *interface.gates,
        *interface.switches,
        *(x for x in vars(interface).values() if isinstance(x, str)),
    )
    if not (
        {library.name, inferred.name, *inferred.others} <= {*FRAMEWORKS}
        and {*library.styles} <= {*STYLES}
        and all(name.isidentifier() for name in parameters)
    ):
        msg = "a target with names that do not exist"
        raise crafted(msg)
    return replace(opened, inferred=_printable(opened.inferred))


def usable_reply(reply: Reply, call: Call, config: TargetConfig) -> Reply:
    """Return a reply whose arrays fit the call wherever a law relies on it.

    Raises
    ------
    TargetDied
        If they do not: `invoke.Caller` sends no such reply.
    """
    misfit = _misfit(reply, call, config)
    if misfit:
        raise crafted(misfit)
    return _printable(reply)


def _misfit(reply: Reply, call: Call, config: TargetConfig) -> str:
    """Return the part of a reply that cannot be one to the call; no text if it fits."""
    operator = OPERATORS[config.op]
    sizes = operator.sizes(call.inputs)
    expected = output_shape(sizes, config.layout, sizes["t"])
    outputs = () if reply.output is None else (reply.output, *reply.other_outputs)
    states, gradients = reply.states or (), reply.gradients or ()
    for x in (*outputs, *states, *gradients):
        if x.dtype not in _WIDE:
            return f"an array of dtype {x.dtype}"
    if reply.expected_shape != expected:
        return "a reply to another call"
    if reply.shape == expected and outputs:
        whole = from_layout(np.broadcast_to(0.0, expected), config.layout).shape
        if outputs[0].shape != whole:
            return "an output of another shape than it says"
    if reply.gradients is not None and {
        len(gradients),
        len(reply.gradient_dtypes),
    } != {len(call.inputs)}:
        return f"{len(gradients)} gradients of {len(call.inputs)} inputs"
    lead = (_sequences(sizes, call, config), sizes["g"])
    shapes = [(*lead, *shape) for shape in operator.state_shapes(sizes)]
    if len(states) > len(shapes):
        return f"{len(states)} states of {len(shapes)}"
    for state, shape in zip(states, shapes, strict=False):
        if state.shape != shape:
            return f"a state of shape {state.shape}"
    return ""


def _sequences(sizes: Mapping[str, int], call: Call, config: TargetConfig) -> int:
    """Return the number of sequences with a state: packed ones, or the batch."""
    return call.sequences if call.segments and "b" in config.layout else sizes["b"]


def _printable(record: Record) -> Record:
    """Return a record in which all texts are printable."""
    texts: dict[str, Any] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, str) and not value.isprintable():
            texts[field.name] = printable(value)
        elif isinstance(value, tuple) and value and isinstance(value[0], str):
            texts[field.name] = tuple(map(printable, value))
    return replace(record, **texts) if texts else record
