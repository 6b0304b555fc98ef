"""Correct kernels of operators that normalise by a softmax: rwkv4, abc and gsa.

They return output and state; where the state has a normalizer, it is a logarithm.
"""

from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import Array, wide
from linkern.testing.kernels.correct.decays import scaled

__all__ = [
    "abc_by_pairs",
    "abc_by_tokens",
    "rwkv4_by_pairs",
    "rwkv4_by_tokens",
]

Result = tuple[Array, Any]


def _softmax(scores: Array, axis: int) -> Array:
    weights = np.exp(scores - scores.max(axis, keepdims=True))
    return weights / weights.sum(axis, keepdims=True)


def _log_sum(logits: Array) -> Array:
    """Return the logarithm of the sum of exponentials over the tokens."""
    if logits.shape[-2] == 1:
        return logits[..., 0, :]
    largest = logits.max(-2, keepdims=True)
    return (largest + np.log(np.exp(logits - largest).sum(-2, keepdims=True)))[
        ..., 0, :
    ]


def _joined(mean: Array, weight: Array, value: Array, logit: Array) -> Result:
    """Return the mean with one value more, and the logarithm of its weight."""
    largest = np.maximum(weight, logit)
    old, new = np.exp(weight - largest), np.exp(logit - largest)
    return (old * mean + new * value) / (old + new), largest + np.log(old + new)


def rwkv4_by_tokens(
    key: Array,
    value: Array,
    log_decay: Array,
    bonus: Array | None = None,
    *,
    initial_state: Any = None,
) -> Result:
    """Go token by token; a mean and the logarithm of its weight are the state."""
    k, v, decay = wide(key), wide(value), wide(log_decay)
    u = np.zeros_like(decay) if bonus is None else wide(bonus)
    mean = np.zeros((*v.shape[:-2], v.shape[-1]), v.dtype)
    weight = np.full_like(mean, -np.inf)
    if initial_state is not None:
        mean, weight = wide(initial_state[0])[..., 0, :], wide(initial_state[1])
    output = np.zeros_like(v)
    for t in range(v.shape[-2]):
        output[..., t, :], _ = _joined(mean, weight, v[..., t, :], u + k[..., t, :])
        mean, weight = _joined(mean, weight + decay, v[..., t, :], k[..., t, :])
    return output.astype(value.dtype), (mean[..., None, :], weight)


def rwkv4_by_pairs(
    key: Array,
    value: Array,
    log_decay: Array,
    bonus: Array | None = None,
    *,
    initial_state: Any = None,
) -> Result:
    """Take a softmax over all earlier tokens for each token; the state is the first."""
    k, v, decay = wide(key), wide(value), wide(log_decay)[..., None, :]
    u = np.zeros_like(decay) if bonus is None else wide(bonus)[..., None, :]
    values, logits = v, k
    if initial_state is not None:
        values = np.concatenate([wide(initial_state[0]), v], axis=-2)
        before = wide(initial_state[1])[..., None, :]
        logits = np.concatenate([before, k], axis=-2)
    first = values.shape[-2] - v.shape[-2]
    ages = np.arange(values.shape[-2], -1, -1, dtype=v.dtype)[:, None]
    faded = np.where(ages > 0, ages * np.where(ages > 0, decay, 0), 0)
    output = np.zeros_like(v)
    for t in range(v.shape[-2]):
        end = t + first
        old = logits[..., :end, :] + faded[..., len(ages) - end :, :]
        scores = np.concatenate([old, u + k[..., t : t + 1, :]], axis=-2)
        weights = _softmax(scores, -2)
        output[..., t, :] = (weights * values[..., : end + 1, :]).sum(-2)
    if not values.shape[-2]:
        nothing = np.zeros((*v.shape[:-2], 1, v.shape[-1]), v.dtype)
        return output.astype(value.dtype), (nothing, nothing[..., 0, :] - np.inf)
    last = logits + faded[..., 1:, :]
    mean = (_softmax(last, -2) * values).sum(-2, keepdims=True)
    return output.astype(value.dtype), (mean, _log_sum(last))


def _slots(state: Any, k: Array, v: Array, s: Array) -> tuple[Array, Array]:
    """Return the memory of slots and the logarithm of its weights."""
    if state is not None:
        return wide(state[0]), wide(state[1])
    lead, width = v.shape[:-2], k.shape[-1] + v.shape[-1]
    weights = np.full((*lead, s.shape[-1]), -np.inf, v.dtype)
    return np.zeros((*lead, s.shape[-1], width), v.dtype), weights


def abc_by_tokens(
    query: Array,
    key: Array,
    value: Array,
    slots: Array,
    *,
    scale: float | None = None,
    initial_state: Any = None,
) -> Result:
    """Go token by token; each slot is a running mean of keys and values."""
    q, k, v, s = scaled(query, scale), wide(key), wide(value), wide(slots)
    memory, weight = _slots(initial_state, k, v, s)
    rows, output = np.concatenate([k, v], axis=-1), np.zeros_like(v)
    for t in range(v.shape[-2]):
        total = np.logaddexp(weight, s[..., t, :])
        new = np.exp(s[..., t, :] - total)[..., None] * rows[..., t, None, :]
        memory = np.exp(weight - total)[..., None] * memory + new
        weight = total
        keys, values = memory[..., : k.shape[-1]], memory[..., k.shape[-1] :]
        chosen = _softmax((keys @ q[..., t, :, None])[..., 0], -1)
        output[..., t, :] = (chosen[..., None, :] @ values)[..., 0, :]
    return output.astype(query.dtype), (memory, weight)


def abc_by_pairs(
    query: Array,
    key: Array,
    value: Array,
    slots: Array,
    *,
    scale: float | None = None,
    initial_state: Any = None,
) -> Result:
    """Take means over all tokens up to each; what a state holds is one token more."""
    q, k, v, s = scaled(query, scale), wide(key), wide(value), wide(slots)
    memory, weight = _slots(initial_state, k, v, s)
    rows, output = np.concatenate([k, v], axis=-1), np.zeros_like(v)
    for t in range(v.shape[-2]):
        seen = np.concatenate([weight[..., None, :], s[..., : t + 1, :]], axis=-2)
        shares = np.swapaxes(_softmax(seen, -2), -1, -2)
        mean = shares[..., 1:] @ rows[..., : t + 1, :] + shares[..., :1] * memory
        chosen = _softmax(
            np.einsum("...mk,...k->...m", mean[..., : k.shape[-1]], q[..., t, :]), -1
        )
        output[..., t, :] = np.einsum(
            "...m,...mv->...v", chosen, mean[..., k.shape[-1] :]
        )
    if v.shape[-2]:
        memory, weight = mean, _log_sum(seen)
    return output.astype(query.dtype), (memory, weight)
