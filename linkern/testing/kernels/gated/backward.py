"""Gradients of the rows of a recurrence, token by token from the last to the first."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from linkern.testing.kernels.gated.rows import Inputs, Rows

__all__ = ["GatedBackward", "pulled_back"]

Array = Any
# How many tokens later a gradient is handed over, in kernels that go by chunks.
CHUNK = 16


def _same(scale: float, key_dim: int) -> float:
    del key_dim
    return scale


def _as_found(inputs: Inputs, gradients: Inputs) -> Inputs:
    del inputs
    return gradients


def _decayed(of_memory: Array, later: Array, reach: Array) -> Array:
    del later, reach
    return of_memory


def _whole(x: Array) -> Array:
    return x


@dataclass(frozen=True)
class GatedBackward:
    """The parts of the gradients of the family; each default is right.

    Parameters
    ----------
    scale : callable
        The scale and the key dimension, to the scale that is used backwards.
    seen_by_value : callable
        The gradient of the memory, that at the end of the chunk and the decay between
        the two, to what the gradient of the value is formed of.
    given : callable
        Inputs and their gradients, to the gradients that are returned.
    of_state : callable
        What becomes of the gradient of the initial memory.
    final : bool
        Whether the gradient of the final memory is used.
    """

    scale: Callable[[float, int], float] = _same
    seen_by_value: Callable[[Array, Array, Array], Array] = _decayed
    given: Callable[[Inputs, Inputs], Inputs] = _as_found
    of_state: Callable[[Array], Array] = _whole
    final: bool = True


@dataclass(frozen=True)
class _Met:
    """One row: what it met, and the cotangent of what it read."""

    t: int
    before: Array
    decayed: Array
    erased: Array
    after: Array


def _column(x: Array, t: int) -> Array:
    return x[..., t, :, None]


def _line(x: Array, t: int) -> Array:
    return x[..., t, None, :]


def _met(rows: Rows, memory: Array) -> list[_Met]:
    found = []
    for t in range(rows.query.shape[-2]):
        decayed = np.exp(_column(rows.log_decay, t)) * memory
        after, erased = decayed + _column(rows.key, t) * _line(rows.value, t), None
        if rows.erase is not None:
            looked_up = memory if rows.undecayed else decayed
            erased = _line(rows.erase, t) @ looked_up
            after = after + _column(rows.rate, t) * erased
        found.append(_Met(t, memory, decayed, erased, after))
        memory = after
    return found


def pulled_back(
    back: GatedBackward, rows: Rows, memory: Array, cotangent: Array, of_final: Any
) -> tuple[Inputs, Array]:
    """Return the gradients of rows, by name, and that of the initial memory.

    Parameters
    ----------
    back : GatedBackward
        Its parts.
    rows : Rows
        One row for each token.
    memory : array (..., K, V)
        The initial memory.
    cotangent : array (..., T, V)
        Cotangent of the output.
    of_final : array (..., K, V) or None
        Cotangent of the final memory.
    """
    scale = back.scale(rows.scale, rows.query.shape[-1])
    of_output = np.asarray(scale, rows.query.dtype) * cotangent.astype(rows.query.dtype)
    names = ("query", "key", "log_decay", "erase", "rate", "bonus")
    kept = [name for name in names if getattr(rows, name) is not None]
    of_rows = {name: np.zeros_like(rows.key) for name in kept}
    of_rows["value"] = np.zeros_like(rows.value)
    use = of_final is not None and back.final
    of_memory = of_final if use else np.zeros_like(memory)
    later, reach = of_memory, np.ones_like(memory[..., :1])
    for met in reversed(_met(rows, memory)):
        if (met.t + 1) % CHUNK == 0:
            later, reach = of_memory, np.ones_like(reach)
        dy = _line(of_output, met.t)
        after = of_memory
        if not rows.before:
            after = of_memory + _column(rows.query, met.t) * dy
        seen = back.seen_by_value(after, later, reach)
        of_value = (seen * _column(rows.key, met.t)).sum(-2)
        of_rows["value"][..., met.t, :] = of_value
        of_memory = _through_row(rows, met, after, dy, of_rows)
        reach = reach * np.exp(_column(rows.log_decay, met.t))
    return of_rows, back.of_state(of_memory)


def _through_row(
    rows: Rows, met: _Met, after: Array, dy: Array, of_rows: Inputs
) -> Array:
    """Return the gradient of the memory before a row from that after it."""
    t = met.t
    read = met.before if rows.before else met.after
    of_rows["query"][..., t, :] = (read * dy).sum(-1)
    of_rows["key"][..., t, :] = (after * _line(rows.value, t)).sum(-1)
    of_decayed, of_before = after, np.zeros_like(after)
    if rows.erase is not None:
        of_rows["rate"][..., t, :] = (after * met.erased).sum(-1)
        of_erased = (after * _column(rows.rate, t)).sum(-2)[..., None, :]
        looked_up = met.before if rows.undecayed else met.decayed
        of_rows["erase"][..., t, :] = (looked_up * of_erased).sum(-1)
        through = _column(rows.erase, t) * of_erased
        if rows.undecayed:
            of_before = through
        else:
            of_decayed = of_decayed + through
    if rows.before:
        of_before = of_before + _column(rows.query, t) * dy
        _through_bonus(rows, t, dy, of_rows)
    of_rows["log_decay"][..., t, :] = (of_decayed * met.decayed).sum(-1)
    return np.exp(_column(rows.log_decay, t)) * of_decayed + of_before


def _through_bonus(rows: Rows, t: int, dy: Array, of_rows: Inputs) -> None:
    """Add what goes through the present token alone."""
    q, k, v = (x[..., t, :] for x in (rows.query, rows.key, rows.value))
    u = rows.bonus[..., 0, :]
    along = (dy[..., 0, :] * v).sum(-1, keepdims=True)
    of_rows["query"][..., t, :] += along * u * k
    of_rows["key"][..., t, :] += along * q * u
    of_rows["value"][..., t, :] += (q * u * k).sum(-1, keepdims=True) * dy[..., 0, :]
    of_rows["bonus"][..., t, :] = along * q * k
