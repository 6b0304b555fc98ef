"""Correct kernels of the family: a check that one of them fails is a false alarm."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import Kernel
from linkern.testing.kernels.gated.assembly import GatedParts, assembled
from linkern.testing.kernels.gated.slots import SlotParts, slotted

__all__ = ["GATED_CORRECT", "GatedKernel", "normalised"]

Array = Any
CHUNKED = GatedParts(takes_packed=True)


@dataclass(frozen=True)
class GatedKernel:
    """A kernel, the operator that it is, and what it declares.

    Parameters
    ----------
    op : str
        The operator.
    kernel : callable
        Called with its inputs by name.
    contract : mapping
        What it declares.
    """

    op: str
    kernel: Kernel
    contract: Mapping[str, Any] = field(default_factory=dict)


def normalised(eps: float, *, outside: bool = False) -> GatedParts:
    """Return parts that divide queries and keys by their norms themselves."""

    def unit(x: Array) -> Array:
        x = x.astype(np.result_type(x.dtype, np.float32))
        squares = (x * x).sum(-1, keepdims=True)
        plus = np.asarray(eps, x.dtype)
        return x / (np.sqrt(squares) + plus if outside else np.sqrt(squares + plus))

    def inputs(given: dict[str, Array]) -> dict[str, Array]:
        return {n: unit(x) if n in ("query", "key") else x for n, x in given.items()}

    return replace(CHUNKED, inputs=inputs, backward=None)


def _both(op: str) -> dict[str, GatedKernel]:
    return {
        f"{op} by chunks": GatedKernel(op, assembled(op, CHUNKED)),
        f"{op} by tokens": GatedKernel(op, assembled(op, replace(CHUNKED, chunk=1))),
    }


GATED_CORRECT: dict[str, GatedKernel] = {}
for _op in ("simple_gla", "gla", "rwkv6", "delta_rule", "gated_delta_rule", "kda"):
    GATED_CORRECT |= _both(_op)
for _op in ("rwkv7", "dplr", "iplr", "comba", "gated_delta_product"):
    GATED_CORRECT[f"{_op} by chunks"] = GatedKernel(
        _op, assembled(_op, replace(CHUNKED, takes_packed=False))
    )
GATED_CORRECT |= {
    "gsa": GatedKernel("gsa", slotted(SlotParts())),
    "kda by chunks of 10": GatedKernel(
        "kda", assembled("kda", replace(CHUNKED, chunk=10))
    ),
    "gated_delta_rule with groups": GatedKernel(
        "gated_delta_rule",
        assembled("gated_delta_rule", replace(CHUNKED, backward=None)),
        {"value_groups": True},
    ),
    "gated_delta_rule that normalises": GatedKernel(
        "gated_delta_rule",
        assembled("gated_delta_rule", normalised(1e-2)),
        {"l2norm": 1e-2},
    ),
    "simple_gla with a scale of its own": GatedKernel(
        "simple_gla",
        assembled("simple_gla", replace(CHUNKED, default_scale=0.5)),
        {"scale": 0.5},
    ),
}
