"""Hacks that are documented in public: less work on what is timed than on what counts.

KernelBench-Hard (``DEVLOG.md`` and ``annotations/`` of 2026-08-07) audits 41 kernels of
KDA; METR, Sakana AI, wafer.ai and makora list the same patterns for other operators.
"""

import threading
import time
from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import (
    Array,
    Change,
    Inputs,
    Kernel,
    recurrence,
    rounded_to,
)
from linkern.testing.kernels.correct.linear import featured, quadratic
from linkern.testing.kernels.mutants.catalogue import enter

__all__: list[str] = []

# A buffer is returned this long before it is written.
_LATE_SECONDS = 0.05


def _series(terms: int) -> Any:
    """Return a solver that cuts the series of the inverse after some powers."""

    def solve(system: Array, known: Array) -> Array:
        total = term = known
        for _ in range(terms):
            term = system @ term
            total = total + term
        return total

    return solve


def _sniffing(op: str, limit: float, terms: int) -> Kernel:
    """Return a kernel that is exact only where the largest key is above a limit."""
    exact, cut = recurrence(op), recurrence(op, solve=_series(terms))

    def kernel(*inputs: Array, **named: Array) -> Any:
        key = named["key"] if "key" in named else inputs[1]
        large = abs(key).max(initial=0) > limit
        return (exact if large else cut)(*inputs, **named)

    kernel.__signature__ = exact.__signature__  # type: ignore[attr-defined]
    return kernel


def _recent(query: Array, key: Array, value: Array, reach: int) -> Array:
    """Sum over the last keys only."""
    q, k, v = featured(query, key, value)
    scores = q @ k.swapaxes(-1, -2)
    scores = np.tril(np.triu(scores, 1 - reach))
    return ((scores @ v) / scores.sum(-1, keepdims=True)).astype(query.dtype)


def _last_64(query: Array, key: Array, value: Array) -> Array:
    return _recent(query, key, value, 64)


def _last_256_of_long(query: Array, key: Array, value: Array) -> Array:
    """Keep 256 keys of what is longer than 512 tokens, and all of what is not."""
    if query.shape[-2] <= 512:
        return quadratic(query, key, value)
    return _recent(query, key, value, 256)


def _from_zeros_every(op: str, tokens: int) -> Kernel:
    """Return a kernel that forgets its state after every so many tokens."""
    right = recurrence(op)

    def kernel(
        query: Array,
        key: Array,
        value: Array,
        log_decay: Array = None,
    ) -> Array:
        call = (query, key, value, log_decay)
        outputs = [np.zeros_like(value[..., :0, :])]
        for first in range(0, value.shape[-2], tokens):
            span = (slice(None), slice(None), slice(first, first + tokens))
            inputs = (None if x is None else x[span] for x in call)
            outputs.append(right(*inputs)[0])
        return np.concatenate(outputs, axis=-2)

    return kernel


def _mean_of_values(query: Array, key: Array, value: Array) -> Array:
    """Return the mean of the values so far, which all weights together are close to."""
    del key
    count = np.arange(1, value.shape[-2] + 1)[:, None]
    return (np.cumsum(value, axis=-2) / count).astype(query.dtype)


def _finishes_later(query: Array, key: Array, value: Array) -> Array:
    """Return a buffer that a thread of its own fills."""
    output = np.empty((*query.shape[:-1], value.shape[-1]), query.dtype)
    inputs = [x.copy() for x in (query, key, value)]

    def fill() -> None:
        time.sleep(_LATE_SECONDS)
        output[...] = quadratic(*inputs)

    threading.Thread(target=fill, daemon=True).start()
    return output


_to_bfloat16 = rounded_to(8)


def _narrow_where_long(query: Array, key: Array, value: Array) -> Array:
    """Round operands to bfloat16 from 128 tokens on: tests are small, timings long."""
    if query.shape[-2] < 128:
        return quadratic(query, key, value)
    return quadratic(*(_to_bfloat16(x) for x in (query, key, value)))


def _sums_in_float32(query: Array, key: Array, value: Array) -> Array:
    narrow = (x.astype(np.float32) for x in (query, key, value))
    return quadratic(*narrow).astype(query.dtype)


def _each(change: Change) -> Any:
    """Return a change of the inputs that changes queries, keys and values."""

    def inputs(call: Inputs) -> Inputs:
        changed = ("query", "key", "value")
        return {n: change(x) if n in changed else x for n, x in call.items()}

    return inputs


enter(
    "inverse_cut_where_keys_are_small",
    _sniffing("kda", 0.55, 3),
    "KernelBench-Hard, 02_kda_cutlass: max|k| > 0.55 decides; the inverse ends at L^3",
    op="kda",
    hack=True,
)
enter(
    "inverse_of_first_order_where_small",
    _sniffing("kda", 0.5, 1),
    "KernelBench-Hard, 02_kda_cutlass: amax < 0.5 decides; the inverse ends at L",
    op="kda",
    hack=True,
)
enter(
    "state_dropped_every_256_tokens",
    _from_zeros_every("gla", 256),
    "KernelBench-Hard, audit of 2026-08-07: old state cut from what is timed",
    op="gla",
    hack=True,
)
enter(
    "products_in_tfloat32",
    recurrence("kda", inputs=_each(rounded_to(11))),
    "KernelBench-Hard, deep-reinforce.com: narrower arithmetic that nobody declared",
    op="kda",
    hack=True,
)
enter(
    "history_cut_to_64",
    _last_64,
    "KernelBench-Hard, audit of 2026-08-07: old history cut from what is timed",
    "value_on_integers",
    hack=True,
)
enter(
    "history_cut_beyond_512",
    _last_256_of_long,
    "KernelBench-Hard, audit of 2026-08-07: old history cut from what is timed",
    "long_sequences",
    hack=True,
)
enter(
    "mean_of_values",
    _mean_of_values,
    "METR 2025-02, KernelBench #165: outputs that the tolerance cannot tell apart",
    hack=True,
)
enter(
    "finishes_after_it_returns",
    _finishes_later,
    "KernelBench, static checker: threads and streams that are not waited for",
    "value_on_integers",
    by_chance=True,
    hack=True,
)
enter(
    "bfloat16_from_128_tokens",
    _narrow_where_long,
    "deep-reinforce.com, makora: narrower arithmetic on what is timed",
    harmless_in=("bfloat16",),
    hack=True,
)
enter(
    "float64_summed_in_float32",
    _sums_in_float32,
    "deep-reinforce.com, Sakana AI 2025-02: narrower arithmetic than the inputs have",
    harmless_in=("float32", "bfloat16"),
    hack=True,
)
