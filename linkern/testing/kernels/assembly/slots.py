"""Gated slot attention in two passes, made of parts that can be replaced."""

import numpy as np

from linkern.testing.kernels.assembly.parts import (
    Array,
    Change,
    Kernel,
    unchanged,
    wide,
)

__all__ = ["slot_attention"]


def _softmax(scores: Array) -> Array:
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def slot_attention(
    *,
    value_decays: Change = unchanged,
    softmax: Change = _softmax,
    returned: Change = unchanged,
) -> Kernel:
    """Return a kernel of gated slot attention, which takes and returns a state.

    Parameters
    ----------
    value_decays : callable
        Applied to the decays in the second pass, that of the values.
    softmax : callable
        Scores of slots to their weights.
    returned : callable
        Applied to the final state: for each slot its key, then its value.
    """

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
        second = value_decays(decays)
        factor = np.asarray(q.shape[-1] ** -0.5 if scale is None else scale, q.dtype)
        width = k.shape[-1]
        state = initial_state
        if state is None:
            size = (s.shape[-1], width + v.shape[-1])
            state = np.zeros((*v.shape[:-2], *size), v.dtype)
        keys, values = state[..., :width], state[..., width:]
        output = np.zeros(v.shape, v.dtype)
        for t in range(v.shape[-2]):
            at = s[..., t, :, None]
            keys = decays[..., t, :, None] * keys + at * k[..., t, None, :]
            values = second[..., t, :, None] * values + at * v[..., t, None, :]
            weights = softmax(factor * (keys @ q[..., t, :, None])[..., 0])
            output[..., t, :] = (weights[..., None, :] @ values)[..., 0, :]
        final = returned(np.concatenate([keys, values], axis=-1))
        return output.astype(query.dtype), final

    return kernel
