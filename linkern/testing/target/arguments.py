"""Arrays that a call passes besides its inputs: parameters of gates, and buffers.

A kernel with a parameter `out` that has no default writes there, and returns nothing.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.oracle.inputs import TOKENS
from linkern.testing.spec.operators import OPERATORS
from linkern.testing.spec.raw_gates import (
    GATE_NAMES,
    PARAMETRIC_FORMS,
    gate_names,
    gate_parameters,
)
from linkern.testing.target.protocol import Call, TargetConfig

__all__ = ["gate_arrays", "output_buffer", "state_axes", "state_buffer"]


def gate_arrays(config: TargetConfig, call: Call) -> dict[str, NDArray[Any]]:
    """Return `A_log` and `dt_bias` of a call with raw gates, those that it takes.

    They are float32, as in the layers that train them, or float64 beside it.
    """
    if config.decay_form not in PARAMETRIC_FORMS:
        return {}
    operator = OPERATORS[config.op]
    sizes, axes = operator.sizes(call.inputs), operator.input("log_decay").axes
    channels = None if axes[-1] in TOKENS else sizes[axes[-1]]
    made = gate_parameters(sizes["g"], channels)
    named = dict(zip(GATE_NAMES, made, strict=True))
    names = gate_names(config.gate_parameters)
    return {name: named[name].astype(_wide(call)) for name in names}


def output_buffer(call: Call, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return an array for the output, in which nothing is written yet."""
    return np.full(shape, np.nan, call.inputs["value"].dtype)


def state_buffer(config: TargetConfig, call: Call) -> NDArray[Any]:
    """Return an array for the last memory, in which nothing is written yet."""
    operator = OPERATORS[config.op]
    sizes = operator.sizes(call.inputs)
    if call.segments:
        sizes |= {"b": call.sequences}
    memory = operator.state_shapes(sizes)[0]
    if config.state_layout == "vk":
        memory = (*memory[:-2], *memory[:-3:-1])
    return np.full((*state_axes(sizes, config.layout), *memory), np.nan, _wide(call))


def state_axes(sizes: dict[str, int], layout: str) -> tuple[int, ...]:
    """Return batch and heads of a state, in the layout of a target."""
    lengths = {"b": sizes["b"], "h": sizes["g"]}
    return tuple(lengths[axis] for axis in layout if axis in lengths)


def _wide(call: Call) -> Any:
    wide = call.inputs["value"].dtype == np.float64
    return np.float64 if wide else np.float32
