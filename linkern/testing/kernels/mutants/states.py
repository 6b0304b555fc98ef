"""Defects of the state: what is received, carried and returned."""

from dataclasses import replace
from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import Kernel, Parts, stateful
from linkern.testing.kernels.mutants.arithmetic import rounded_to
from linkern.testing.kernels.mutants.catalogue import enter

__all__: list[str] = []

Array = Any


def _state_part(**replaced: Any) -> Kernel:
    return stateful(replace(Parts(), **replaced))


def _nothing(memory: Array, normalizer: Array) -> tuple[Array, Array]:
    return np.zeros_like(memory), np.zeros_like(normalizer)


def _no_normalizer(memory: Array, normalizer: Array) -> tuple[Array, Array]:
    return memory, np.zeros_like(normalizer)


def _transposed(memory: Array, normalizer: Array) -> tuple[Array, Array]:
    if memory.shape[-1] == memory.shape[-2]:
        memory = np.swapaxes(memory, -1, -2)
    return memory, normalizer


def _lacks_tail(
    query: Array, key: Array, value: Array, initial_state: Any = None
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
    for kept, new in zip(initial_state, state, strict=True):
        kept[...] = new
    return output, initial_state


def _first_head_for_all(memory: Array, normalizer: Array) -> tuple[Array, Array]:
    if memory.ndim > 3:
        memory = np.repeat(memory[:, :1], memory.shape[1], axis=1)
    return memory, normalizer


_narrow = rounded_to(8)

enter(
    "state_ignored",
    _state_part(received=_nothing),
    "fla ceef5e0f, RWKV7 #351",
    law="state_split",
)
enter(
    "normalizer_of_state_ignored",
    _state_part(received=_no_normalizer),
    "fla #875: the running normaliser",
    law="state_split",
)
enter(
    "state_lacks_tail", _lacks_tail, "fla b63addd7, flashserve NPU #407", law="decoding"
)
enter(
    "state_read_transposed",
    _state_part(received=_transposed),
    "sparkinfer #610",
    law="state_split",
)
enter(
    "state_updated_in_place",
    _updates_in_place,
    "fast-transformers f60d7ad",
    law="inputs_untouched",
)
enter(
    "state_returned_in_bfloat16",
    _state_part(returned=lambda s, z: (_narrow(s), _narrow(z))),
    "ollama #15865",
    law="state_value",
)
enter(
    "state_returned_twice_as_large",
    _state_part(returned=lambda s, z: (2 * s, 2 * z)),
    "cancels in the quotient, unless something is added to it",
    law="state_value",
)
enter(
    "state_of_first_head",
    _state_part(received=_first_head_for_all),
    "RWKV-LM #241",
    law="state_split",
)
