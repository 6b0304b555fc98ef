"""What each token reads, erases and writes: one form for most of the family.

Token t turns a memory S of K rows and V columns into ``e^g S + b (a^T S') + k v^T``,
where S' is the memory before or after its decay, and reads ``q^T S`` before or after
that. The delta rules are this with ``a = -k`` and ``b = beta k``; what adds only has
neither.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Inputs", "Rows", "given_back", "rows_of", "wide"]

# These kernels stand for code that nobody typed.
Array = Any
Inputs = dict[str, Any]

DELTA = ("delta_rule", "gated_delta_rule", "kda", "gated_delta_product")
UNDECAYED = ("comba", "rwkv7", "dplr", "iplr")


@dataclass(frozen=True)
class Rows:
    """The rows of a recurrence, ``(..., T, .)``.

    Parameters
    ----------
    query, key, value : array
        What is read with, and the outer product that is added.
    log_decay : array (..., T, K) or (..., T, 1)
        How much is kept.
    erase, rate : array or None
        The vectors a and b.
    bonus : array or None
        What the key of the present token counts where the read comes first.
    scale : float
        Factor on what is read.
    undecayed : bool
        Whether what is erased is looked up before the decay.
    before : bool
        Whether a token reads before it writes.
    each : int
        Rows of a token; only the last of them reads, only the first decays.
    """

    query: Array
    key: Array
    value: Array
    log_decay: Array
    erase: Array = None
    rate: Array = None
    bonus: Array = None
    scale: float = 1.0
    undecayed: bool = False
    before: bool = False
    each: int = 1


def wide(x: Array) -> Array:
    """Return an array in float32 or wider; None for None."""
    return None if x is None else x.astype(np.result_type(x.dtype, np.float32))


def rows_of(op: str, inputs: Inputs, scale: float) -> Rows:
    """Return the rows of an operator called with these inputs."""
    given = {name: wide(x) for name, x in inputs.items()}
    value = given["value"]
    groups = value.shape[-3] // max(given["key"].shape[-3], 1)
    for name in ("query", "key", "auxiliary_key"):
        if groups != 1 and name in given:
            given[name] = np.repeat(given[name], groups, axis=-3)
    query, key = given["query"], given["key"]
    each = max(key.shape[-2] // max(query.shape[-2], 1), 1)
    if each > 1:
        query = _placed(query, each - 1, each)
    rows = Rows(
        query,
        key,
        value,
        _decays(given.get("log_decay"), value, each),
        scale=scale,
        each=each,
        undecayed=op in UNDECAYED,
        before=op == "rwkv6",
    )
    return _erasing(op, given, rows)


def _erasing(op: str, given: Inputs, rows: Rows) -> Rows:
    changed = vars(rows).copy()
    key, beta = rows.key, given.get("beta")
    if op in DELTA or op == "comba":
        written = key if beta is None else beta[..., None] * key
        erase = given["auxiliary_key"] if op == "comba" else key
        changed |= {"erase": -erase, "rate": written, "key": written}
    elif op == "rwkv7":
        removal, rate = given["removal_key"], given["removal_rate"]
        changed |= {"erase": -removal, "rate": rate * removal}
    elif op in ("dplr", "iplr"):
        changed |= {"erase": given["a"], "rate": given["b"]}
    elif op == "rwkv6":
        bonus = given.get("bonus")
        bonus = np.zeros_like(key[..., 0, :]) if bonus is None else bonus
        changed |= {"bonus": bonus[..., None, :]}
    return Rows(**changed)


def _decays(log_decay: Array, value: Array, each: int) -> Array:
    if log_decay is None:
        return np.zeros((*value.shape[:-1], 1), value.dtype)
    if log_decay.ndim < value.ndim:
        log_decay = log_decay[..., None]
    return _placed(log_decay, 0, each) if each > 1 else log_decay


def _placed(x: Array, slot: int, slots: int) -> Array:
    """Put the row of each token into one of the slots of the token."""
    found = np.zeros((*x.shape[:-2], x.shape[-2] * slots, x.shape[-1]), x.dtype)
    found[..., slot::slots, :] = x
    return found


def given_back(op: str, inputs: Inputs, found: Inputs) -> Inputs:
    """Return the gradients of inputs from those of the rows, by name.

    Parameters
    ----------
    op : str
        The operator; it has one row for each token.
    inputs : dict of str to array
        What it was called with.
    found : dict of str to array
        Gradients of the rows, by their names in `Rows`.
    """
    given = {name: wide(x) for name, x in inputs.items()}
    of = {name: found[name] for name in ("query", "key", "value")}
    if "log_decay" in inputs:
        decays = found["log_decay"]
        scalar = given["log_decay"].ndim < given["value"].ndim
        of["log_decay"] = decays.sum(-1) if scalar else decays
    if op in DELTA:
        written, beta = found["key"] + found["rate"], given.get("beta")
        of["key"] = written - found["erase"]
        if beta is not None:
            of["key"] = beta[..., None] * written - found["erase"]
            of["beta"] = (given["key"] * written).sum(-1)
    elif op == "rwkv6":
        of["bonus"] = found["bonus"].sum(-2)
        axes = tuple(range(of["bonus"].ndim - given["bonus"].ndim))
        of["bonus"] = of["bonus"].sum(axes)
    return {name: of[name].astype(x.dtype) for name, x in inputs.items()}
