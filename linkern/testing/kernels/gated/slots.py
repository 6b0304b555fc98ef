"""Gated slot attention in two passes, made of parts that can be replaced."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import Kernel
from linkern.testing.kernels.gated.rows import wide

__all__ = ["SlotParts", "slotted"]

Array = Any


def _whole(x: Array) -> Array:
    return x


def _softmax(scores: Array) -> Array:
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


@dataclass(frozen=True)
class SlotParts:
    """The parts of gated slot attention; each default is right.

    Parameters
    ----------
    decays_of_values : callable
        What becomes of the decays in the second pass.
    weights : callable
        Scores of the slots to their weights.
    returned : callable
        The final memory, keys of the slots before their values, to what is returned.
    """

    decays_of_values: Callable[[Array], Array] = _whole
    weights: Callable[[Array], Array] = _softmax
    returned: Callable[[Array], Array] = _whole


def slotted(parts: SlotParts) -> Kernel:
    """Return the kernel made of `parts`, which takes and returns a state."""

    def kernel(
        query: Array,
        key: Array,
        value: Array,
        slots: Array,
        log_decay: Array = None,
        *,
        scale: float | None = None,
        initial_state: Array = None,
    ) -> tuple[Array, Array]:
        q, k, v, s, g = (wide(x) for x in (query, key, value, slots, log_decay))
        decays = np.ones_like(s) if g is None else np.exp(g)
        of_values = parts.decays_of_values(decays)
        factor = np.asarray(q.shape[-1] ** -0.5 if scale is None else scale, q.dtype)
        width = k.shape[-1]
        memory = initial_state
        if memory is None:
            size = (s.shape[-1], width + v.shape[-1])
            memory = np.zeros((*v.shape[:-2], *size), v.dtype)
        keys, values = memory[..., :width], memory[..., width:]
        output = np.zeros(v.shape, v.dtype)
        for t in range(v.shape[-2]):
            at = s[..., t, :, None]
            keys = decays[..., t, :, None] * keys + at * k[..., t, None, :]
            values = of_values[..., t, :, None] * values + at * v[..., t, None, :]
            scores = factor * (keys @ q[..., t, :, None])[..., 0]
            output[..., t, :] = (parts.weights(scores)[..., None, :] @ values)[
                ..., 0, :
            ]
        after = parts.returned(np.concatenate([keys, values], axis=-1))
        return output.astype(query.dtype), after

    return kernel
