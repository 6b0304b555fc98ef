"""The catalogue of correct kernels."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from linkern.testing.kernels.assembly import (
    Kernel,
    Parts,
    RecurrenceBackward,
    assemble,
    packed,
    recurrence,
    slot_attention,
    stateful,
    unit_rows,
)
from linkern.testing.kernels.correct import linear

__all__ = ["CORRECT", "CorrectKernel"]


@dataclass(frozen=True)
class CorrectKernel:
    """A correct kernel.

    Parameters
    ----------
    name : str
        Name in the catalogue.
    op : str
        Name of its operator.
    kernel : callable
        Called with the inputs of the operator; some take and return a state, some have
        a ``vjp``.
    contract : mapping
        Fields of the `Contract` that it declares.
    """

    name: str
    op: str
    kernel: Kernel
    contract: Mapping[str, Any] = field(default_factory=dict)


CORRECT: dict[str, CorrectKernel] = {}


def _enter(name: str, op: str, kernel: Kernel, **contract: Any) -> None:
    assert name not in CORRECT, name
    CORRECT[name] = CorrectKernel(name, op, kernel, contract)


for _kernel in (
    linear.quadratic,
    linear.recurrent,
    linear.backwards,
    linear.prefix_sums,
    linear.tree_scan,
    linear.odd_then_even,
    linear.divides_first,
    linear.renormalises,
    linear.features_outside,
    linear.multiplies_by_reciprocal,
    linear.textbook_features,
):
    _enter(_kernel.__name__, "linear_attention", _kernel)
_enter("chunk_16", "linear_attention", assemble(Parts()))
_enter("chunk_100", "linear_attention", assemble(Parts(chunk=100)))
_enter("chunk_32_with_state", "linear_attention", stateful(Parts(chunk=32)))
_enter("recurrent_with_state", "linear_attention", stateful(Parts(chunk=1)))


def _full(op: str, **parts: Any) -> Kernel:
    """Return a kernel with gradients that takes packed sequences."""
    return packed(recurrence(op, backward=RecurrenceBackward(), **parts), op)


for _op in ("simple_gla", "gla", "rwkv6", "delta_rule", "gated_delta_rule", "kda"):
    _enter(f"{_op} by chunks", _op, _full(_op))
    _enter(f"{_op} by tokens", _op, _full(_op, chunk=1))
for _op in ("rwkv7", "dplr", "iplr", "comba", "gated_delta_product"):
    _enter(f"{_op} by chunks", _op, recurrence(_op))
_enter("gsa", "gsa", slot_attention())
_enter("gsa of packed sequences", "gsa", packed(slot_attention(), "gsa"))
_enter("packed", "linear_attention", packed(stateful(Parts(chunk=64))))
_enter("kda by chunks of 10", "kda", _full("kda", chunk=10))
_enter(
    "gated_delta_rule with groups",
    "gated_delta_rule",
    packed(recurrence("gated_delta_rule"), "gated_delta_rule"),
    value_groups=True,
)
_enter(
    "gated_delta_rule that normalises",
    "gated_delta_rule",
    packed(recurrence("gated_delta_rule", inputs=unit_rows(1e-2)), "gated_delta_rule"),
    l2norm=1e-2,
)
_enter(
    "simple_gla with a scale of its own",
    "simple_gla",
    _full("simple_gla", default_scale=0.5),
    scale=0.5,
)
