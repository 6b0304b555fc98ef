"""Kernels that recognise the judge: exact where they take a call for a test.

Each looks at what could tell a law by its calls: whole numbers, sizes, norms, zeros,
the count of calls, earlier inputs. Elsewhere it does less than it should.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from itertools import count
from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import Array, Kernel, rounded_to
from linkern.testing.kernels.correct.linear import quadratic
from linkern.testing.kernels.mutants.catalogue import enter

__all__: list[str] = []

_to_bfloat16 = rounded_to(8)
Sign = Callable[..., bool]


def _narrow(query: Array, key: Array, value: Array) -> Array:
    return quadratic(*(_to_bfloat16(x) for x in (query, key, value)))


def _zeros(query: Array, key: Array, value: Array) -> Array:
    del key
    return np.zeros((*query.shape[:-1], value.shape[-1]), query.dtype)


def _less(seen: Sign, otherwise: Kernel = _narrow) -> Kernel:
    """Return a kernel that does less where the inputs have a sign of no test."""

    def kernel(query: Array, key: Array, value: Array) -> Array:
        work = otherwise if seen(query, key, value) else quadratic
        output: Array = work(query, key, value)
        return output

    return kernel


def _rounds(*inputs: Array) -> bool:
    return bool((inputs[2] != np.rint(inputs[2])).any())


def _tiled(query: Array, *_: Array) -> bool:
    return bool(query.shape[-2] and query.shape[-2] % 16 == 0)


def _is_normal(_: Array, key: Array, value: Array) -> bool:
    """Return True for keys and values whose spread is that of normal numbers."""
    if min(key.size, value.size) < 64:
        return False
    spread = [float(x.astype(np.float64).std()) for x in (key, value)]
    return all(0.8 < one < 1.25 for one in spread)


def _is_sparse(_: Array, __: Array, value: Array) -> bool:
    return bool(value.size > 8 and (value == 0).mean() > 0.5)


def _is_large(_: Array, __: Array, value: Array) -> bool:
    return bool(abs(value).max(initial=0) > 1e6)


def _from_call(first: int) -> Sign:
    """Return a sign that shows from some call of the process on."""
    calls = count(1)
    return lambda *_: next(calls) >= first


def _every(step: int) -> Sign:
    calls = count(1)
    return lambda *_: next(calls) % step == 0


def _shape_is_known() -> Sign:
    """Return a sign that shows from the second call of a shape on."""
    calls: Counter[Hashable] = Counter()

    def seen(*inputs: Array) -> bool:
        shapes = tuple(x.shape for x in inputs)
        calls[shapes] += 1
        return calls[shapes] > 1

    return seen


def _by_first_token() -> Kernel:
    """Return a kernel that takes calls with one first token for one call."""
    answers: dict[Hashable, Array] = {}

    def kernel(query: Array, key: Array, value: Array) -> Array:
        where = (value.shape, *(x[..., :1, :].tobytes() for x in (query, key, value)))
        if where not in answers:
            answers.clear()
            answers[where] = quadratic(query, key, value)
        return answers[where].copy()

    return kernel


def _by_prefix_of_keys() -> Kernel:
    """Return a kernel that keeps the rows whose keys it has seen, whatever the rest."""
    last: list[Array] = []

    def kernel(query: Array, key: Array, value: Array) -> Array:
        output: Array = quadratic(query, key, value)
        if last and last[0].shape == key.shape and last[1].shape == output.shape:
            differ = (last[0] != key).any(axis=(0, 1, 3))
            known = int(differ.argmax()) if differ.any() else len(differ)
            output[..., :known, :] = last[1][..., :known, :]
        last[:] = [key.copy(), output.copy()]
        return output

    return kernel


_NARROW: dict[str, Any] = {"harmless_in": ("bfloat16",), "hack": True}
_SNIFFED = "KernelBench-Hard, 02_kda_cutlass: inputs are sniffed"
_WARM = "robust-kbench, 2025-02: work skipped in the memory of an evaluation"
_MEMO = "KernelBench-Hard, top-k: outputs memoised by a part of the input"
enter(
    "exact_on_whole_numbers",
    _less(_rounds),
    _SNIFFED,
    **_NARROW,
)
enter(
    "narrow_at_multiples_of_16",
    _less(_tiled),
    "METR 2025-02: shapes of the benchmark are hard-coded",
    **_NARROW,
)
enter(
    "zeros_where_inputs_are_normal",
    _less(_is_normal, _zeros),
    "KernelBench #165: zeros pass; KernelBench-Hard: inputs are sniffed",
    hack=True,
)
enter(
    "zeros_where_values_are_sparse",
    _less(_is_sparse, _zeros),
    "MultiKernelBench: one of its seven profiles of values is sparse",
    "value_on_integers",
    hack=True,
)
enter(
    "narrow_where_values_are_large",
    _less(_is_large),
    _SNIFFED,
    "scaling_of_values",
    **_NARROW,
)
enter(
    "narrow_from_call_12",
    _less(_from_call(12)),
    _WARM,
    by_chance=True,
    **_NARROW,
)
enter(
    "narrow_from_call_30",
    _less(_from_call(30)),
    _WARM,
    by_chance=True,
    **_NARROW,
)
enter(
    "narrow_at_every_third_call",
    _less(_every(3)),
    "wafer.ai field guide, 2026-03-12: right on what is checked, now and then",
    "determinism",
    by_chance=True,
    **_NARROW,
)
enter(
    "narrow_once_a_shape_is_known",
    _less(_shape_is_known()),
    _WARM,
    "determinism",
    by_chance=True,
    **_NARROW,
)
enter(
    "replays_by_first_token",
    _by_first_token(),
    _MEMO,
    "freshness",
    by_chance=True,
    hack=True,
)
enter(
    "rows_kept_by_prefix_of_keys",
    _by_prefix_of_keys(),
    "vLLM#51113: states of cached prefixes that belong to other tokens",
    "scaling_of_values",
    by_chance=True,
    hack=True,
)
