"""Launches of the calls that the goals are about, planned for an H100 and not run."""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from cuda_instances import DryDevice, untouched

from linkern import feature_maps
from linkern.core.recurrence import Terms
from linkern.kernels.cuda.backward import pullback, recurrent_pullback
from linkern.kernels.cuda.forward import attend, recurrent
from linkern.kernels.cuda.launch import Launch
from linkern.testing.target.frameworks import numpy_dtype

BATCH, HEADS, TOKENS = 8, 16, 4096
# Shared memory of a block of an H100.
SHARED = 227 << 10
# Operator, dtypes and K = V; if gradients are asked for.
_CALLS = (
    ("linear_attention", "bfloat16", 64, False),
    ("linear_attention", "bfloat16", 128, False),
    ("linear_attention", "float32", 64, False),
    ("linear_attention", "bfloat16", 64, True),
    ("linear_attention", "bfloat16", 128, True),
    ("linear_attention", "float32", 64, True),
    ("gated_delta_rule", "bfloat16", 64, False),
    ("gated_delta_rule", "bfloat16", 128, False),
    ("gated_delta_rule", "float32", 64, False),
    ("gated_delta_rule", "bfloat16", 64, True),
    ("gated_delta_rule", "bfloat16", 128, True),
    ("gated_delta_rule", "float32", 64, True),
    ("gla", "bfloat16", 64, False),
    ("gla", "bfloat16", 128, False),
    ("gla", "float32", 64, False),
    ("kda", "bfloat16", 64, False),
    ("kda", "bfloat16", 128, False),
    ("kda", "float32", 64, False),
)


class PlannedCall(NamedTuple):
    """A call and its launches.

    Parameters
    ----------
    operator, dtype : str
        Of the call.
    dim : int
        K = V.
    gradients : bool
        If these are the launches of the gradients, and not of the output.
    launches : tuple of Launch
        In the order in which they run.
    """

    operator: str
    dtype: str
    dim: int
    gradients: bool
    launches: tuple[Launch, ...]


def planned_calls() -> Iterator[PlannedCall]:
    """Yield the calls."""
    for operator, dtype, dim, gradients in _CALLS:
        device = DryDevice(SHARED)
        run = _attention if operator == "linear_attention" else _recurrence
        run(device, operator, numpy_dtype(dtype), dim, gradients)
        yield PlannedCall(operator, dtype, dim, gradients, tuple(device.launches))


def _attention(
    device: DryDevice, _: str, dtype: Any, dim: int, gradients: bool
) -> None:
    row = untouched((BATCH, HEADS, TOKENS, dim), dtype)
    memory = untouched((BATCH, HEADS, dim, dim), np.float32)
    inputs = (row, row, row, None, memory, memory[..., 0].copy())
    if gradients:
        pull = partial(pullback, device, *inputs, feature_map=feature_maps.elu_plus_one)
        pull(row, *inputs[4:])
    else:
        attend(device, *inputs, feature_map=feature_maps.elu_plus_one)


def _recurrence(
    device: DryDevice, operator: str, dtype: Any, dim: int, gradients: bool
) -> None:
    row = untouched((BATCH, HEADS, TOKENS, dim), dtype)
    gate = untouched((BATCH, HEADS, TOKENS, 1), np.float32)
    memory = untouched((BATCH, HEADS, dim, dim), np.float32)
    log_decay = gate
    if operator != "gated_delta_rule":
        log_decay = untouched(row.shape, np.float32)
    erases = operator != "gla"
    terms = Terms(
        *(row, row, row, log_decay, row if erases else None),
        beta=gate if erases else None,
    )
    if gradients:
        recurrent_pullback(device, memory, terms, row, memory)
    else:
        recurrent(device, memory, terms)
