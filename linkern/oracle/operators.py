"""The family of linear attention: every operator with its oracle.

`FAMILY` holds them by name. Each is one program of a few lines (`operators`) on a
`tape` of `balls`; the recurrence (`rows`) is one operation of it (`scan`), and how far
any order of its sums can be from it is derived in `enclosures`.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from linkern.oracle.operator import FamilyEvaluation, FamilyOperator, Played
from linkern.oracle.programs.table import PROGRAMS

__all__ = [
    "FAMILY",
    "FamilyEvaluation",
    "FamilyOperator",
    "Played",
    "lightning_log_decay",
    "retention_log_decay",
]

Real = NDArray[np.float64]
Inputs = Mapping[str, Real | None]

_QKV = ("query", "key", "value")


def retention_log_decay(heads: int) -> Real:
    """Return ``log(1 - 2^(-5-h))`` for every head.

    Examples
    --------
    >>> float(np.exp(retention_log_decay(1)[0]))
    0.96875
    """
    return np.asarray(np.log1p(-(2.0 ** -(5.0 + np.arange(heads)))))


def lightning_log_decay(heads: int, layer: int = 0, layers: int = 1) -> Real:
    """Return ``-(8 / H)(1 - layer / layers) h`` for every head h.

    Examples
    --------
    >>> lightning_log_decay(2)
    array([-0., -4.])
    """
    return np.asarray(-(8.0 / heads) * (1 - layer / layers) * np.arange(heads))


def _array(inputs: Inputs, name: str) -> Real:
    x = inputs.get(name)
    if x is None:
        msg = f"`{name}` must be an array, got None."
        raise ValueError(msg)
    return x


def _memory(rows: str, columns: str) -> Callable[[Inputs], tuple[Real, ...]]:
    """Return a function of inputs that makes a memory of zeros."""

    def empty(inputs: Inputs) -> tuple[Real, ...]:
        lead = _array(inputs, "value").shape[:-2]
        k, v = (_array(inputs, x).shape[-1] for x in (rows, columns))
        return (np.zeros((*lead, k, v)),)

    return empty


def _slots(inputs: Inputs) -> tuple[Real, ...]:
    lead = _array(inputs, "value").shape[:-2]
    slots, k, v = (_array(inputs, x).shape[-1] for x in ("slots", "key", "value"))
    return (np.zeros((*lead, slots, k + v)),)


def _slots_and_sums(inputs: Inputs) -> tuple[Real, ...]:
    (memory,) = _slots(inputs)
    return memory, np.full(memory.shape[:-1], -np.inf)


def _weighted_mean(inputs: Inputs) -> tuple[Real, ...]:
    value = _array(inputs, "value")
    lead, v = value.shape[:-2], value.shape[-1]
    return np.zeros((*lead, 1, v)), np.full((*lead, v), -np.inf)


def _one_row(inputs: Inputs) -> tuple[Real, ...]:
    value = _array(inputs, "value")
    return (np.zeros((*value.shape[:-2], 1, value.shape[-1])),)


def _moments(inputs: Inputs) -> tuple[Real, ...]:
    k, v = (_array(inputs, x).shape[-1] for x in ("key", "value"))
    return (np.zeros((*_array(inputs, "value").shape[:-2], k, k + v)),)


def _buckets(inputs: Inputs) -> tuple[Real, ...]:
    k, v, levels = (
        _array(inputs, x).shape[-1] for x in ("key", "value", "level_scales")
    )
    return (np.zeros((*_array(inputs, "value").shape[:-2], levels, k, v)),)


def _key_features(inputs: Inputs) -> tuple[Real, ...]:
    (memory,) = _memory("key", "value")(inputs)
    return memory, np.zeros(memory.shape[:-1])


def _features(low: int) -> Callable[[Inputs], tuple[Real, ...]]:
    """Return a function that makes sums over monomials of degree 2, or `low` to 2."""

    def empty(inputs: Inputs) -> tuple[Real, ...]:
        k, v = (_array(inputs, x).shape[-1] for x in ("key", "value"))
        size = sum(k**degree for degree in range(low, 3))
        lead = _array(inputs, "value").shape[:-2]
        return np.zeros((*lead, size, v)), np.zeros((*lead, size))

    return empty


def _heads(inputs: Inputs) -> int:
    return int(_array(inputs, "value").shape[-3])


_PLAIN = _memory("key", "value")
_STATES: dict[str, Callable[[Inputs], tuple[Real, ...]]] = {
    "linear_attention": _key_features,
    "linear_attention_noncausal": _key_features,
    "hgrn": _one_row,
    "rwkv4": _weighted_mean,
    "gsa": _slots,
    "abc": _slots_and_sums,
    "based": _features(0),
    "rebased": _features(2),
    "mesa": _moments,
    "log_linear_attention": _buckets,
}
_NAMES: dict[str, tuple[str, ...]] = {
    "linear_attention": _QKV,
    "linear_attention_noncausal": _QKV,
    "retention": (*_QKV, "log_decay"),
    "lightning_attention": (*_QKV, "log_decay"),
    "simple_gla": (*_QKV, "log_decay"),
    "gla": (*_QKV, "log_decay"),
    "hgrn": ("value", "log_decay"),
    "rwkv4": ("key", "value", "log_decay", "bonus"),
    "rwkv6": (*_QKV, "log_decay", "bonus"),
    "rwkv7": (*_QKV, "log_decay", "removal_key", "removal_rate"),
    "dplr": (*_QKV, "a", "b", "log_decay"),
    "iplr": (*_QKV, "a", "b"),
    "delta_rule": (*_QKV, "beta"),
    "gated_delta_rule": (*_QKV, "log_decay", "beta"),
    "kda": (*_QKV, "log_decay", "beta"),
    "gdn2": (*_QKV, "log_decay", "erase_gate", "write_gate"),
    "comba": (*_QKV, "auxiliary_key", "log_decay", "beta"),
    "gated_delta_product": (*_QKV, "log_decay", "beta"),
    "oja": (*_QKV, "log_decay", "beta"),
    "gsa": (*_QKV, "slots", "log_decay"),
    "abc": (*_QKV, "slots"),
    "based": _QKV,
    "rebased": _QKV,
    "mesa": (*_QKV, "log_decay", "beta", "ridge"),
    "log_linear_attention": (*_QKV, "log_decay", "level_scales"),
}
_DEFAULTS: dict[str, dict[str, Callable[[Inputs], Real]]] = {
    "retention": {"log_decay": lambda x: retention_log_decay(_heads(x))},
    "lightning_attention": {"log_decay": lambda x: lightning_log_decay(_heads(x))},
}
_UNSCALED = {
    "linear_attention",
    "linear_attention_noncausal",
    "hgrn",
    "rwkv4",
    "rwkv7",
    "mesa",
    "log_linear_attention",
}

FAMILY: dict[str, FamilyOperator] = {
    name: FamilyOperator(
        name,
        names,
        PROGRAMS[name],
        _STATES.get(name, _PLAIN),
        _DEFAULTS.get(name, {}),
        scaled=name not in _UNSCALED,
        causal=name != "linear_attention_noncausal",
    )
    for name, names in _NAMES.items()
}
