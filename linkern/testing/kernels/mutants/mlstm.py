"""Defects of the mLSTM: its stabiliser, its floor and the weight of its state."""

from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import Array, Inputs, wide
from linkern.testing.kernels.correct.decays import scaled
from linkern.testing.kernels.correct.mlstm import by_tokens
from linkern.testing.kernels.mutants.catalogue import before, enter

__all__: list[str] = []


def _exponentials(
    query: Array,
    key: Array,
    value: Array,
    input_gate: Array | None = None,
    log_decay: Array | None = None,
    *,
    scale: float | None = None,
) -> Any:
    """Take exponentials of the gates as they are."""
    q, k, v = scaled(query, scale), wide(key), wide(value)
    shape, nothing = (*v.shape[:-2], k.shape[-1]), np.zeros(v.shape[:-1], v.dtype)
    memory, n = np.zeros((*shape, v.shape[-1]), v.dtype), np.zeros(shape, v.dtype)
    i, g = (nothing if x is None else wide(x) for x in (input_gate, log_decay))
    output = np.zeros_like(v)
    with np.errstate(all="ignore"):
        for t in range(v.shape[-2]):
            f, w = np.exp(g[..., t, None]), np.exp(i[..., t, None])
            new = w * k[..., t, :]
            memory = f[..., None] * memory + new[..., None] * v[..., t, None, :]
            n = f * n + new
            above = np.einsum("...k,...kv->...v", q[..., t, :], memory)
            below = abs((q[..., t, :] * n).sum(-1, keepdims=True))
            output[..., t, :] = above / np.maximum(below, 1)
    return output.astype(query.dtype)


def _floor_of_one(above: Array, below: Array, m: Array) -> Array:
    """Compare what is over ``e^m`` with one."""
    del m
    return above / np.maximum(abs(below), 1)


def _sign_kept(above: Array, below: Array, m: Array) -> Array:
    """Leave out the absolute value: a negative weight is below any floor."""
    lift, least = np.exp(np.minimum(m, 0)), np.exp(-np.maximum(m, 0))
    return lift * above / np.maximum(lift * below, least)


def _weight_of_one(call: Inputs) -> Inputs:
    """Take over the memories of an initial state as if their weights added up to 1."""
    state = call.get("initial_state")
    if state is None:
        return call
    weight = np.where(np.isneginf(state[1]), state[1], 0).astype(state[1].dtype)
    return {**call, "initial_state": (state[0], weight)}


enter(
    "input_gates_without_maximum",
    _exponentials,
    "#104: fast-transformers b886c6a: exponentials that overflow",
    op="mlstm",
)
enter(
    "floor_of_one_over_the_maximum",
    by_tokens(_floor_of_one),
    "#60: fla 85992884: a factor that one of two terms has",
    op="mlstm",
)
enter(
    "sign_of_the_normalizer_kept",
    by_tokens(_sign_kept),
    "fast-transformers #11: a denominator that may have any sign",
    op="mlstm",
)
enter(
    "weight_of_the_state_lost",
    before(by_tokens(), _weight_of_one),
    "#93: fla #285: the state of a half is not the state of the whole",
    "state_split",
    "decoding",
    op="mlstm",
)
