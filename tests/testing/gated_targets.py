"""Kernels of the family in NumPy, each as its author might write it: all are right.

``f(query, key, value, ..., initial_state=None)`` on ``(B, H, T, .)``, and back come
output and state. The sums are formed in float32 or wider.
"""

import numpy as np

CHUNK = 16


def wide(*arrays):
    return [
        None if x is None else x.astype(np.result_type(x.dtype, np.float32))
        for x in arrays
    ]


def empty(k, v, initial_state):
    if initial_state is not None:
        return initial_state
    return np.zeros((*v.shape[:-2], k.shape[-1], v.shape[-1]), v.dtype)


def factor(scale, q):
    return np.asarray(q.shape[-1] ** -0.5 if scale is None else scale, q.dtype)


def gates(log_decay, beta, v):
    if log_decay is None:
        log_decay = np.zeros(v.shape[:-1], v.dtype)
    if beta is None:
        beta = np.ones(v.shape[:-1], v.dtype)
    return log_decay, beta


def simple_gla(query, key, value, log_decay=None, *, scale=None, initial_state=None):
    """All pairs at once, with the decays between them."""
    q, k, v, g = wide(query, key, value, log_decay)
    g, _ = gates(g, None, v)
    state, length = empty(k, v, initial_state), v.shape[-2]
    total = np.cumsum(g, axis=-1)
    # Sums over spans one by one: a difference of sums would lose all after -inf.
    between = np.full((*g.shape, length), -np.inf, v.dtype)
    for t in range(length):
        between[..., t, t] = 0
        if t:
            between[..., t, :t] = between[..., t - 1, :t] + g[..., t : t + 1]
    weights = np.exp(between) * (q @ np.swapaxes(k, -1, -2))
    output = weights @ v + np.exp(total)[..., None] * (q @ state)
    if length:
        kept = np.exp(between[..., -1, :])[..., None] * k
        state = np.exp(total[..., -1, None, None]) * state
        state = state + np.swapaxes(kept, -1, -2) @ v
    return (factor(scale, q) * output).astype(query.dtype), state


def recurrent(
    query, key, value, log_decay, beta, scale, initial_state, *, erases, skipped=None
):
    """One token after the other; decays of channels or of whole states.

    What erases does so at every token, except at one that a test may name.
    """
    q, k, v, g, b = wide(query, key, value, log_decay, beta)
    g, b = gates(g, b, v)
    if g.ndim == v.ndim - 1:
        g = g[..., None]
    state = empty(k, v, initial_state)
    output = np.zeros((*q.shape[:-1], v.shape[-1]), v.dtype)
    factors = np.exp(g)
    for t in range(v.shape[-2]):
        state = factors[..., t, :, None] * state
        written = v[..., t, :]
        if erases:
            held = (k[..., t, None, :] @ state)[..., 0, :]
            held = 0 * held if t == skipped else held
            written = b[..., t, None] * (written - held)
        state = state + k[..., t, :, None] * written[..., None, :]
        output[..., t, :] = (q[..., t, None, :] @ state)[..., 0, :]
    return (factor(scale, q) * output).astype(query.dtype), state


def gla(query, key, value, log_decay=None, *, scale=None, initial_state=None):
    given = (query, key, value, log_decay, None, scale, initial_state)
    return recurrent(*given, erases=False)


def kda(q, k, v, g=None, beta=None, *, scale=None, initial_state=None):
    return recurrent(q, k, v, g, beta, scale, initial_state, erases=True)


def gated_delta_rule(q, k, v, beta=None, g=None, *, scale=None, initial_state=None):
    """The order of others: beta before the decay."""
    return recurrent(q, k, v, g, beta, scale, initial_state, erases=True)


def chunked_gated_delta_rule(
    query, key, value, log_decay=None, beta=None, *, scale=None, initial_state=None
):
    """Chunk by chunk, with the triangular system of each solved by its inverse."""
    q, k, v, g, b = wide(query, key, value, log_decay, beta)
    g, b = gates(g, b, v)
    state = empty(k, v, initial_state)
    outputs = [np.zeros((*q.shape[:-2], 0, v.shape[-1]), v.dtype)]
    for first in range(0, v.shape[-2], CHUNK):
        span = slice(first, first + CHUNK)
        parts = q[..., span, :], k[..., span, :], v[..., span, :]
        output, state = one_chunk(*parts, g[..., span], b[..., span], state)
        outputs.append(output)
    output = factor(scale, q) * np.concatenate(outputs, axis=-2)
    return output.astype(query.dtype), state


def between(g):
    """The log-decay from one token to a later one, each summed by itself."""
    length = g.shape[-1]
    steps = np.broadcast_to(g[..., None, :], (*g.shape, length)).copy()
    position = np.arange(length)
    inside = (position[None, None] > position[:, None, None]) & (
        position[None, None] <= position[None, :, None]
    )  # [from, to, step]
    sums = np.where(inside, steps[..., None, 0, :][..., None, :], 0).sum(-1)
    return np.swapaxes(sums, -1, -2)


def one_chunk(q, k, v, g, b, state):
    length = v.shape[-2]
    lower = np.tril(np.ones((length, length), bool))
    decay = np.where(lower, np.exp(between(g)), 0)
    since = np.exp(np.cumsum(g, axis=-1))[..., None]
    scores = k @ np.swapaxes(k, -1, -2)
    system = np.eye(length, dtype=v.dtype) + b[..., None] * np.where(
        np.tril(lower, -1), decay * scores, 0
    )
    held = since * (k @ state)
    written = np.linalg.inv(system) @ (b[..., None] * (v - held))
    output = since * (q @ state) + (decay * (q @ np.swapaxes(k, -1, -2))) @ written
    kept = decay[..., -1, :, None] * k
    state = since[..., -1:, :] * state + np.swapaxes(kept, -1, -2) @ written
    return output, state


def rwkv6(r, k, v, w=None, u=None, *, scale=None, initial_state=None):
    """The current token is read with a bonus, before it is written."""
    q, k, v, g, bonus = wide(r, k, v, w, u)
    state = empty(k, v, initial_state)
    g = np.zeros_like(k) if g is None else g
    bonus = np.zeros(k.shape[-1], k.dtype) if bonus is None else bonus
    output = (q * bonus[..., None, :] * k).sum(-1, keepdims=True) * v
    factors = np.exp(g)
    for t in range(v.shape[-2]):
        output[..., t, :] += (q[..., t, None, :] @ state)[..., 0, :]
        state = factors[..., t, :, None] * state
        state += k[..., t, :, None] * v[..., t, None, :]
    return (factor(scale, q) * output).astype(r.dtype), state


KERNELS = {
    "simple_gla": simple_gla,
    "gla": gla,
    "rwkv6": rwkv6,
    "kda": kda,
    "gated_delta_rule": gated_delta_rule,
    "chunked gated_delta_rule": chunked_gated_delta_rule,
}
