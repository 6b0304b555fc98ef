"""Defects of the state: what is received, carried and returned."""

from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import (
    Array,
    Change,
    Kernel,
    Parts,
    State,
    recurrence,
    rounded_to,
    slot_attention,
    stateful,
    wide,
)
from linkern.testing.kernels.mutants.catalogue import enter

__all__: list[str] = []

SPLIT = ("state_split", "state_value", "decoding", "shard_law")


def _zeros(state: State) -> State:
    return tuple(np.zeros_like(x) for x in state)


def _no_normalizer(state: State) -> State:
    return state[0], np.zeros_like(state[1])


def _transposed(memory: Array) -> Array:
    square = memory.shape[-1] == memory.shape[-2]
    return np.swapaxes(memory, -1, -2) if square else memory


def _first_head(memory: Array) -> Array:
    if memory.ndim < 4:
        return memory
    return np.repeat(memory[:, :1], memory.shape[1], axis=1)


def _of_memory(change: Change) -> Change:
    """Return a change of a state that leaves the normalizer as it is."""
    return lambda state: (change(state[0]), state[1])


def _lacks_tail(
    query: Array, key: Array, value: Array, initial_state: State = None
) -> Any:
    """Return the state after the last full chunk; the output is right."""
    kernel = stateful(Parts())
    output, state = kernel(query, key, value, initial_state)
    full = query.shape[-2] // 16 * 16
    if 0 < full < query.shape[-2]:
        whole = (x[..., :full, :] for x in (query, key, value))
        _, state = kernel(*whole, initial_state)
    return output, state


def _updates_in_place(
    query: Array, key: Array, value: Array, initial_state: Any = None
) -> Any:
    output, state = stateful(Parts())(query, key, value, initial_state)
    if initial_state is None:
        return output, state
    for old, new in zip(initial_state, state, strict=True):
        old[...] = new
    return output, initial_state


def _full_chunks(first: int, length: int, chunk: int) -> Array:
    """Count full chunks only, and the first."""
    return np.ones(length) if length == chunk or first == 0 else np.zeros(length)


def _initial_read(decays_of: Change) -> Kernel:
    """Return simple GLA that reads the initial state separately.

    `decays_of` turns log-decays into those of the initial state at each token.
    """
    right = recurrence("simple_gla")

    def kernel(
        query: Array,
        key: Array,
        value: Array,
        log_decay: Array = None,
        *,
        scale: float | None = None,
        initial_state: Array = None,
    ) -> Any:
        options = {"scale": scale, "log_decay": log_decay}
        output, memory = right(query, key, value, **options)
        if initial_state is None or query.shape[-2] == 0:
            return output, memory
        g = np.zeros(value.shape[:-1], np.float32) if log_decay is None else log_decay
        decays = np.exp(decays_of(wide(g)))[..., None]
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        read = decays * ((wide(query) * np.float32(factor)) @ initial_state)
        memory = memory + decays[..., -1:, :] * initial_state
        return (output + read).astype(query.dtype), memory

    return kernel


def _once_too_little(g: Array) -> Array:
    return np.cumsum(g, axis=-1) - g[..., :1]


def _from_chunk_start(g: Array) -> Array:
    """Restart the sums at every chunk of 16."""
    parts = [np.cumsum(g[..., i : i + 16], axis=-1) for i in range(0, g.shape[-1], 16)]
    return np.concatenate(parts, axis=-1)


_narrow = rounded_to(8)

enter(
    "state_ignored",
    stateful(Parts(received=_zeros)),
    "fla ceef5e0f, RWKV7 #351",
    "state_split",
)
enter(
    "normalizer_of_state_ignored",
    stateful(Parts(received=_no_normalizer)),
    "fla #875: the running normaliser",
    "state_split",
)
enter(
    "state_lacks_tail",
    _lacks_tail,
    "fla b63addd7, flashserve NPU #407",
    "decoding",
)
enter(
    "state_read_transposed",
    stateful(Parts(received=_of_memory(_transposed))),
    "sparkinfer #610",
    "state_split",
)
enter(
    "state_updated_in_place",
    _updates_in_place,
    "fast-transformers f60d7ad",
    "inputs_untouched",
)
enter(
    "state_returned_in_bfloat16",
    stateful(Parts(returned=lambda state: tuple(map(_narrow, state)))),
    "ollama #15865",
    "state_value",
)
enter(
    "state_returned_twice_as_large",
    stateful(Parts(returned=lambda state: tuple(2 * x for x in state))),
    "cancels in the quotient, unless something is added to it",
    "state_value",
)
enter(
    "state_of_first_head",
    stateful(Parts(received=_of_memory(_first_head))),
    "RWKV-LM #241",
    "state_split",
)
enter(
    "tail_missing_in_state",
    recurrence("gla", counted=_full_chunks),
    "#63: fla b63addd7",
    *SPLIT,
    op="gla",
)
enter(
    "initial_state_decays_too_little",
    _initial_read(_once_too_little),
    "#109: vllm #21783",
    *SPLIT,
    op="simple_gla",
)
enter(
    "initial_state_decays_from_chunk_start",
    _initial_read(_from_chunk_start),
    "#110: vllm #23279",
    *SPLIT,
    op="simple_gla",
)
enter(
    "initial_state_transposed",
    recurrence("kda", received=_transposed),
    "#116: sparkinfer #610",
    *SPLIT,
    op="kda",
)
enter(
    "initial_state_ignored",
    recurrence("gla", received=np.zeros_like),
    "#93: fla #285",
    *SPLIT,
    op="gla",
)
enter(
    "initial_state_of_first_head",
    recurrence("gated_delta_rule", received=_first_head),
    "#131: RWKV-LM #241",
    *SPLIT,
    op="gated_delta_rule",
)
enter(
    "memory_returned_in_bfloat16",
    recurrence("gated_delta_rule", returned=_narrow),
    "#115: ollama #15865",
    "state_value",
    "state_split",
    op="gated_delta_rule",
)
enter(
    "memory_carried_in_bfloat16",
    recurrence("kda", carried=_narrow),
    "#115: ollama #15865",
    "value_on_random_reals",
    op="kda",
)
enter(
    "memory_saturates",
    recurrence("kda", received=lambda x: np.clip(x, -0.25, 0.25)),
    "#122: attention-gym #464: states staged in float16",
    "state_linearity",
    "state_split",
    "shard_law",
    op="kda",
)
enter(
    "slots_of_keys_returned_twice",
    slot_attention(returned=lambda x: np.zeros_like(x) + x[..., :1]),
    "#65: fla ceef5e0f",
    "state_split",
    op="gsa",
)
