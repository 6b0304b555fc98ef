"""Gradients of the terms of a recurrence, token by token from the last to the first."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from linkern.testing.kernels.assembly.parts import (
    CHUNK,
    Array,
    Change,
    Inputs,
    unchanged,
)
from linkern.testing.kernels.assembly.terms import Terms

__all__ = ["RecurrenceBackward", "backward"]


@dataclass(frozen=True)
class RecurrenceBackward:
    """The parts of the gradients of a recurrence; each default is right.

    Parameters
    ----------
    scale : callable
        Scale and key dimension, to the scale that the backward pass uses.
    value_source : callable
        The gradient of the state, that at the end of the chunk, and the decay between
        the two, to the gradient of the state that the gradient of the value is made of.
    gradients : callable
        Gradients and inputs, both by name, to the gradients that are returned.
    initial : callable
        Applied to the gradient of the initial state.
    final : bool
        True if the gradient of the final state is used.
    """

    scale: Callable[[float, int], float] = unchanged
    value_source: Callable[[Array, Array, Array], Array] = unchanged
    gradients: Callable[[Inputs, Inputs], Inputs] = unchanged
    initial: Change = unchanged
    final: bool = True


@dataclass(frozen=True)
class _Step:
    """One step of the forward pass: states around it, and what it erased."""

    t: int
    before: Array
    decayed: Array
    erased: Array
    after: Array


def _column(x: Array, t: int) -> Array:
    return x[..., t, :, None]


def _row(x: Array, t: int) -> Array:
    return x[..., t, None, :]


def _forward(terms: Terms, state: Array) -> list[_Step]:
    steps = []
    for t in range(terms.query.shape[-2]):
        decayed = np.exp(_column(terms.log_decay, t)) * state
        after, erased = decayed + _column(terms.key, t) * _row(terms.value, t), None
        if terms.erase is not None:
            looked_up = state if terms.early_erase else decayed
            erased = _row(terms.erase, t) @ looked_up
            after = after + _column(terms.rate, t) * erased
        steps.append(_Step(t, state, decayed, erased, after))
        state = after
    return steps


def backward(
    parts: RecurrenceBackward,
    terms: Terms,
    state: Array,
    cotangent: Array,
    d_final: Array,
) -> tuple[Inputs, Array]:
    """Return the gradients of terms, by name, and that of the initial state.

    Parameters
    ----------
    parts : RecurrenceBackward
        The parts of the gradients.
    terms : Terms
        One step for each token.
    state : array (..., K, V)
        The initial state.
    cotangent : array (..., T, V)
        Cotangent of the output.
    d_final : array (..., K, V) or None
        Cotangent of the final state.
    """
    scale = parts.scale(terms.scale, terms.query.shape[-1])
    d_output = np.asarray(scale, terms.query.dtype) * cotangent.astype(
        terms.query.dtype
    )
    names = ("query", "key", "log_decay", "erase", "rate", "bonus")
    present = [name for name in names if getattr(terms, name) is not None]
    d_terms = {name: np.zeros_like(terms.key) for name in present}
    d_terms["value"] = np.zeros_like(terms.value)
    d_state = np.zeros_like(state)
    if d_final is not None and parts.final:
        d_state = d_final
    later, decay = d_state, np.ones_like(state[..., :1])
    for step in reversed(_forward(terms, state)):
        if (step.t + 1) % CHUNK == 0:
            later, decay = d_state, np.ones_like(decay)
        dy = _row(d_output, step.t)
        after = d_state
        if not terms.early_read:
            after = d_state + _column(terms.query, step.t) * dy
        source = parts.value_source(after, later, decay)
        d_value = (source * _column(terms.key, step.t)).sum(-2)
        d_terms["value"][..., step.t, :] = d_value
        d_state = _through_step(terms, step, after, dy, d_terms)
        decay = decay * np.exp(_column(terms.log_decay, step.t))
    return d_terms, parts.initial(d_state)


def _through_step(
    terms: Terms, step: _Step, after: Array, dy: Array, d_terms: Inputs
) -> Array:
    """Return the gradient of the state before a step from that after it."""
    t = step.t
    read = step.before if terms.early_read else step.after
    d_terms["query"][..., t, :] = (read * dy).sum(-1)
    d_terms["key"][..., t, :] = (after * _row(terms.value, t)).sum(-1)
    d_decayed, d_before = after, np.zeros_like(after)
    if terms.erase is not None:
        d_terms["rate"][..., t, :] = (after * step.erased).sum(-1)
        d_erased = (after * _column(terms.rate, t)).sum(-2)[..., None, :]
        looked_up = step.before if terms.early_erase else step.decayed
        d_terms["erase"][..., t, :] = (looked_up * d_erased).sum(-1)
        through = _column(terms.erase, t) * d_erased
        if terms.early_erase:
            d_before = through
        else:
            d_decayed = d_decayed + through
    if terms.early_read:
        d_before = d_before + _column(terms.query, t) * dy
        _through_bonus(terms, t, dy, d_terms)
    d_terms["log_decay"][..., t, :] = (d_decayed * step.decayed).sum(-1)
    return np.exp(_column(terms.log_decay, t)) * d_decayed + d_before


def _through_bonus(terms: Terms, t: int, dy: Array, d_terms: Inputs) -> None:
    """Add the gradients of the present token's bonus."""
    q, k, v = (x[..., t, :] for x in (terms.query, terms.key, terms.value))
    u = terms.bonus[..., 0, :]
    along = (dy[..., 0, :] * v).sum(-1, keepdims=True)
    d_terms["query"][..., t, :] += along * u * k
    d_terms["key"][..., t, :] += along * q * u
    d_terms["value"][..., t, :] += (q * u * k).sum(-1, keepdims=True) * dy[..., 0, :]
    d_terms["bonus"][..., t, :] = along * q * k
