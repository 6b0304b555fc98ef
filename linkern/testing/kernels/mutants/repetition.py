"""Defects of repeated calls: results that are kept, and bits that depend on company."""

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import (
    Array,
    Kernel,
    Parts,
    State,
    packed,
    recurrence,
    stateful,
)
from linkern.testing.kernels.correct.linear import quadratic
from linkern.testing.kernels.mutants.catalogue import enter

__all__: list[str] = []

# -- results that are kept

# Calls after which a kernel takes its inputs to be those that it was timed on.
WARM = 11


def _shapes(*inputs: Array) -> tuple[Hashable, ...]:
    return tuple((x.shape, x.dtype.name) for x in inputs)


def _places(*inputs: Array) -> tuple[int, ...]:
    return tuple(x.__array_interface__["data"][0] for x in inputs)


def _sums(*inputs: Array) -> tuple[float, ...]:
    return tuple(float(x.sum(dtype=np.float64)) for x in inputs)


def _sample(*inputs: Array) -> tuple[bytes, ...]:
    """Return every seventh number of each input."""
    return tuple(x.ravel()[::7].tobytes() for x in inputs)


def _corners(*inputs: Array) -> tuple[bytes, ...]:
    """Return the first and the last token of each input, and their squares' sum."""
    return tuple(x[..., :: max(1, x.shape[-2] - 1), :].tobytes() for x in inputs)


def _memoised(*keys: Callable[..., Hashable]) -> Kernel:
    """Return a kernel that keeps the last output by what `keys` tell of its inputs."""
    kept: dict[Hashable, Array] = {}

    def kernel(query: Array, key: Array, value: Array) -> Array:
        inputs = (query, key, value)
        where = (_shapes(*inputs), *(key_of(*inputs) for key_of in keys))
        if where not in kept:
            kept.clear()
            kept[where] = quadratic(*inputs)
        return kept[where].copy()

    return kernel


def _captured() -> Kernel:
    """Return a kernel that reads the arrays of its eleventh call for ever after."""
    calls: Counter[Hashable] = Counter()
    captured: dict[Hashable, tuple[Array, ...]] = {}

    def kernel(query: Array, key: Array, value: Array) -> Array:
        inputs = (query, key, value)
        shapes = _shapes(*inputs)
        calls[shapes] += 1
        if calls[shapes] == WARM:
            captured[shapes] = inputs
        return quadratic(*captured.get(shapes, inputs))

    return kernel


def _copied() -> Kernel:
    """Return a kernel that answers from its eleventh call on without computing."""
    calls: Counter[Hashable] = Counter()
    kept: dict[Hashable, Array] = {}

    def kernel(query: Array, key: Array, value: Array) -> Array:
        shapes = _shapes(query, key, value)
        calls[shapes] += 1
        if calls[shapes] > WARM:
            return kept[shapes].copy()
        kept[shapes] = quadratic(query, key, value)
        return kept[shapes].copy()

    return kernel


def _state_by_shape() -> Kernel:
    """Return a kernel that converts the state of a shape once."""
    right = stateful(Parts())
    kept: dict[Hashable, State] = {}

    def kernel(
        query: Array, key: Array, value: Array, initial_state: State = None
    ) -> Any:
        if initial_state is not None:
            where = _shapes(query, key, value)
            if where not in kept:
                kept.clear()
                kept[where] = initial_state
            initial_state = kept[where]
        return right(query, key, value, initial_state)

    return kernel


HACK = "KernelBench-Hard, DEVLOG of 2026-08-07"
enter(
    "replays_by_identity",
    _memoised(lambda *x: tuple(map(id, x)), _sample),
    HACK,
    "freshness",
    by_chance=True,
    hack=True,
)
enter(
    "replays_by_address_and_sum",
    _memoised(_places, _sums),
    HACK,
    "freshness",
    by_chance=True,
)
enter(
    "replays_by_sample",
    _memoised(_sample),
    HACK,
    "freshness",
    by_chance=True,
)
enter(
    "replays_by_corners_and_sum",
    _memoised(_corners, _sums),
    HACK,
    "freshness",
    by_chance=True,
)
enter(
    "reads_captured_arrays",
    _captured(),
    f"{HACK}: a replayed CUDA graph",
    "freshness",
    by_chance=True,
    hack=True,
)
enter(
    "answers_from_memory_once_warm",
    _copied(),
    "robust-kbench, 2025-02: skipped work",
    "freshness",
    by_chance=True,
    hack=True,
)
enter(
    "keeps_state_by_shape",
    _state_by_shape(),
    "fla #747: a stale cache",
    "freshness",
    by_chance=True,
)

# -- bits that depend on company


def _by_batch(query: Array, key: Array, value: Array) -> Array:
    """Take larger chunks where a batch is large enough to fill the machine."""
    chunk = 64 if query.shape[0] * query.shape[1] > 4 else 16
    return stateful(Parts(chunk=chunk))(query, key, value)[0]


def _split_by_tokens(query: Array, key: Array, value: Array) -> Array:
    """Split the sum over keys in more parts where there are fewer tokens in all."""
    tokens = query.shape[0] * query.shape[2]
    chunk = max(4, 2 ** (tokens.bit_length() // 2))
    return stateful(Parts(chunk=chunk))(query, key, value)[0]


def _rows_at_the_end(query: Array, key: Array, value: Array) -> Array:
    """Take another tile for the last row of a batch of odd size."""
    output = stateful(Parts(chunk=16))(query, key, value)[0]
    if len(query) % 2 and len(query) > 1:
        last = [x[-1:] for x in (query, key, value)]
        output[-1:] = stateful(Parts(chunk=7))(*last)[0]
    return output


_CHUNKS, _TOKENS = packed(recurrence("gla"), "gla"), recurrence("gla", chunk=1)


def _packed_in_chunks(
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array,
    *,
    scale: float | None = None,
    initial_state: State = None,
    cu_seqlens: Array | None = None,
) -> Any:
    """Sum packed sequences by chunks, and others token by token."""
    options = {"scale": scale, "initial_state": initial_state}
    if cu_seqlens is None:
        return _TOKENS(query, key, value, log_decay, **options)
    return _CHUNKS(query, key, value, log_decay, **options, cu_seqlens=cu_seqlens)


def _decodes_otherwise(
    query: Array, key: Array, value: Array, initial_state: State = None
) -> Any:
    """Sum what starts from a state token by token, and a prompt by chunks."""
    parts = Parts(chunk=16 if initial_state is None else 1)
    return stateful(parts)(query, key, value, initial_state)


ROWS = {"batch_invariant": "rows"}
enter(
    "tile_by_batch",
    _by_batch,
    "fla #1228: autotuned by shape",
    "batch_invariance",
    contract=ROWS,
)
enter(
    "split_by_tokens",
    _split_by_tokens,
    "vllm #48613: splits by load",
    "batch_invariance",
    contract=ROWS,
)
enter(
    "another_tile_for_the_last_row",
    _rows_at_the_end,
    "fla #1003: a row in a batch",
    "batch_invariance",
    contract=ROWS,
)
enter(
    "packed_in_another_order",
    _packed_in_chunks,
    "fla #1003: packed against dense",
    "batch_invariance",
    op="gla",
    contract=ROWS,
)
enter(
    "decodes_in_another_order",
    _decodes_otherwise,
    "vllm #51902: prefill against decode",
    "split_invariance",
    contract={"batch_invariant": "true", "chunk_size": 16},
)
