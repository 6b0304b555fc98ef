"""Defects of states and of packed sequences: what goes on to the next, and what not."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import Kernel
from linkern.testing.kernels.gated.assembly import GatedParts, assembled
from linkern.testing.kernels.gated.catalogue import enter
from linkern.testing.kernels.gated.mutants_of_gates import part
from linkern.testing.kernels.gated.rows import wide
from linkern.testing.kernels.gated.slots import SlotParts, slotted
from linkern.testing.kernels.mutants.arithmetic import rounded_to

__all__: list[str] = []

Array = Any
SPLIT = ("state_split", "state_value", "decoding", "shard_law")
PACKED = "packed_equals_separate"


def _full_chunks(first: int, length: int, chunk: int) -> Array:
    """Keep full chunks only, except where there is but one."""
    return np.ones(length) if length == chunk or first == 0 else np.zeros(length)


def _transposed(memory: Array) -> Array:
    square = memory.shape[-1] == memory.shape[-2]
    return np.swapaxes(memory, -1, -2) if square else memory


def _first_head(memory: Array) -> Array:
    return np.repeat(memory[:, :1], memory.shape[1], axis=1)


def _initial_read(decays_of: Any) -> Kernel:
    """Return simple GLA that reads the initial state apart from its own tokens.

    `decays_of` makes of the gates what is left of that state at each token.
    """
    right = assembled("simple_gla", GatedParts(backward=None))

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
        left = np.exp(decays_of(wide(g)))[..., None]
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        read = left * ((wide(query) * np.float32(factor)) @ initial_state)
        memory = memory + left[..., -1:, :] * initial_state
        return (output + read).astype(query.dtype), memory

    return kernel


def _once_too_little(g: Array) -> Array:
    return np.cumsum(g, axis=-1) - g[..., :1]


def _from_chunk_start(g: Array) -> Array:
    """Begin sums anew at every chunk of 16."""
    parts = [np.cumsum(g[..., i : i + 16], axis=-1) for i in range(0, g.shape[-1], 16)]
    return np.concatenate(parts, axis=-1)


def _from_the_first(edges: list[int]) -> list[tuple[int, int, bool]]:
    """Only the first sequence starts from nothing."""
    return [(a, b, i == 0) for i, (a, b) in enumerate(pairwise(edges))]


def _after_an_empty_one(edges: list[int]) -> list[tuple[int, int, bool]]:
    """Let an empty sequence leave the state of the one before to the next."""
    spans = list(pairwise(edges))
    before = [(1, 2), *spans[:-1]]
    full = [
        (a, b, a == 0 or c != d) for (a, b), (c, d) in zip(spans, before, strict=True)
    ]
    return [span for span in full if span[0] < span[1]]


def _on_the_grid(edges: list[int]) -> list[tuple[int, int, bool]]:
    """States are reset where a chunk of 16 begins, not where a sequence does."""
    starts = sorted({(edge + 15) // 16 * 16 for edge in edges[:-1]})
    inner = [edge for edge in starts if edges[0] < edge < edges[-1]]
    return [(a, b, True) for a, b in pairwise([edges[0], *inner, edges[-1]])]


def _packed(op: str, **replaced: Any) -> Kernel:
    return assembled(
        op, replace(GatedParts(backward=None, takes_packed=True), **replaced)
    )


_narrow = rounded_to(8)

enter(
    "tail_missing_in_state",
    "gla",
    part("gla", kept=_full_chunks),
    "#63: fla b63addd7",
    *SPLIT,
    cause="state_lacks_tail",
)
enter(
    "initial_state_decays_too_little",
    "simple_gla",
    _initial_read(_once_too_little),
    "#109: vllm #21783",
    *SPLIT,
    cause="state_not_decayed_by_first_token",
)
enter(
    "initial_state_decays_from_chunk_start",
    "simple_gla",
    _initial_read(_from_chunk_start),
    "#110: vllm #23279",
    *SPLIT,
)
enter(
    "initial_state_transposed",
    "kda",
    part("kda", received=_transposed),
    "#116: sparkinfer #610",
    *SPLIT,
    cause="state_transposed",
)
enter(
    "initial_state_ignored",
    "gla",
    part("gla", received=np.zeros_like),
    "#93: fla #285",
    *SPLIT,
    cause="state_ignored",
)
enter(
    "initial_state_of_first_head",
    "gated_delta_rule",
    part("gated_delta_rule", received=_first_head),
    "#131: RWKV-LM #241",
    *SPLIT,
    cause="state_of_first_head",
)
enter(
    "memory_returned_in_bfloat16",
    "gated_delta_rule",
    part("gated_delta_rule", returned=_narrow),
    "#115: ollama #15865",
    "state_value",
    "state_split",
    cause="state_rounded",
)
enter(
    "memory_carried_in_bfloat16",
    "kda",
    part("kda", carried=_narrow),
    "#115: ollama #15865",
    "value_on_random_reals",
)
enter(
    "memory_saturates",
    "kda",
    part("kda", received=lambda x: np.clip(x, -0.25, 0.25)),
    "#122: attention-gym #464: states staged in float16",
    "state_linearity",
    "state_split",
    "shard_law",
)
enter(
    "slots_of_keys_returned_twice",
    "gsa",
    slotted(SlotParts(returned=lambda x: np.zeros_like(x) + x[..., :1])),
    "#65: fla ceef5e0f",
    "state_split",
)
enter(
    "packed_starts_from_the_one_before",
    "simple_gla",
    _packed("simple_gla", packed=_from_the_first),
    "#129: ik_llama.cpp #1933",
    PACKED,
    cause="packed_not_reset",
)
enter(
    "packed_reset_on_chunk_grid",
    "gated_delta_rule",
    _packed("gated_delta_rule", packed=_on_the_grid),
    "#112: sglang #31833",
    PACKED,
    cause="packed_reset_on_chunk_grid",
)
enter(
    "packed_kept_past_an_empty_one",
    "gla",
    _packed("gla", packed=_after_an_empty_one),
    "#123: FlashKDA #32: empty sequences",
    PACKED,
    cause="packed_goes_on_after_empty",
)
enter(
    "packed_slack_not_written",
    "kda",
    _packed("kda", empty=lambda x: np.full_like(x, np.nan)),
    "#87: fla #892",
    PACKED,
)
