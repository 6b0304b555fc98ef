"""The catalogue of correct kernels."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
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
from linkern.testing.kernels.correct import (
    decays,
    erasing,
    features,
    levels,
    linear,
    mlstm,
    momentum,
    powers,
    preconditioned,
    ranks,
    softmax,
    solves,
    state_space,
    trapezoidal,
)
from linkern.testing.kernels.correct.spans import in_spans

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
for _kernel in (linear.every_key, linear.every_key_online):
    _enter(_kernel.__name__, "linear_attention_noncausal", _kernel)
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
_enter("chunk_64_packed", "linear_attention", packed(stateful(Parts(chunk=64))))
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
_ORDERS: tuple[tuple[str, str, Kernel], ...] = (
    ("retention by tokens", "retention", decays.retention_by_tokens),
    ("lightning by tokens", "lightning_attention", decays.lightning_by_tokens),
    ("lightning by chunks", "lightning_attention", decays.lightning_by_chunks),
    ("ssd by segment sums", "ssd", decays.ssd_by_segment_sums),
    ("hgrn by tokens", "hgrn", decays.hgrn_by_tokens),
    ("hgrn by doubling", "hgrn", decays.hgrn_by_doubling),
    ("gdn2 by tokens", "gdn2", erasing.gdn2_by_tokens),
    ("oja by tokens", "oja", erasing.oja_by_tokens),
    ("oja transposed", "oja", erasing.oja_transposed),
    ("rwkv4 by tokens", "rwkv4", softmax.rwkv4_by_tokens),
    ("abc by tokens", "abc", softmax.abc_by_tokens),
    ("mesa by solving", "mesa", solves.mesa_by_solving),
    ("mesa by cholesky", "mesa", solves.mesa_by_cholesky),
    ("scan by tokens", "selective_scan", state_space.selective_scan_by_tokens),
    ("scan by doubling", "selective_scan", state_space.selective_scan_by_doubling),
    ("mlstm by tokens", "mlstm", mlstm.by_tokens()),
    ("mamba3 by tokens", "mamba3", trapezoidal.by_tokens()),
    ("mamba3_mimo by tokens", "mamba3_mimo", ranks.by_tokens()),
    *(
        (f"{op} by tokens", op, preconditioned.by_tokens())
        for op in preconditioned.OPERATORS
    ),
    ("momentum by tokens", "momentum_delta_rule", momentum.by_tokens()),
    ("levels by tokens", "log_linear_attention", levels.levels_by_tokens),
)
_SPANS: tuple[tuple[str, Kernel, int], ...] = (
    ("retention", decays.retention_as_toeplitz, 256),
    ("rwkv4", softmax.rwkv4_by_pairs, 100),
    ("abc", softmax.abc_by_pairs, 100),
    ("mlstm", mlstm.in_pairs, 100),
    ("mamba3", trapezoidal.by_pairs, 100),
    ("mamba3_mimo", ranks.by_pairs, 60),
    *((op, preconditioned.in_pairs, 40) for op in preconditioned.OPERATORS),
    ("momentum_delta_rule", momentum.in_pairs, 40),
    ("log_linear_attention", levels.levels_by_pairs, 100),
)
for _name, _op, _order in _ORDERS:
    _enter(_name, _op, _order)
for _op, _order, _length in _SPANS:
    _name = f"{_op} by pairs in spans of {_length}"
    _enter(_name, _op, in_spans(_op, _order, _length))
for _op, _degree in (("power_retention", 2), ("power_retention_4", 4)):
    _powers = partial(powers.products, degree=_degree)
    _enter(f"{_op} by tokens", _op, powers.by_tokens(_powers))
    _enter(f"{_op} by pairs", _op, in_spans(_op, powers.in_pairs(_degree), 100))
for _op, _features in (("based", features.taylor), ("rebased", features.squares)):
    _enter(f"{_op} by chunks of 7", _op, features.by_chunks(_features, 7))
    _enter(f"{_op} by chunks of 256", _op, features.by_chunks(_features, 256))
