"""A kernel as its author might write it, and the same one with a common flaw.

Judge them:

    linkern verify examples/chunked_attention.py:attention --op linear_attention
    linkern verify examples/chunked_attention.py:with_epsilon --op linear_attention
"""

import numpy as np

CHUNK = 64


def attention(query, key, value, eps=0.0):
    """Causal linear attention with elu(x) + 1 on arrays (batch, heads, time, dim)."""
    q, k = (np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in (query, key))
    memory = np.zeros((*k.shape[:2], k.shape[3], value.shape[3]), q.dtype)
    normalizer = np.zeros((*k.shape[:2], k.shape[3], 1), q.dtype)
    output = np.empty_like(value)
    for start in range(0, q.shape[2], CHUNK):
        chunk = np.s_[:, :, start : start + CHUNK]
        scores = np.tril(q[chunk] @ k[chunk].swapaxes(-1, -2))
        numerator = q[chunk] @ memory + scores @ value[chunk]
        denominator = q[chunk] @ normalizer + scores.sum(-1, keepdims=True)
        output[chunk] = numerator / (denominator + eps)
        memory += k[chunk].swapaxes(-1, -2) @ value[chunk]
        normalizer += k[chunk].sum(-2)[..., None]
    return output


def with_epsilon(query, key, value):
    """Add 1e-6 to the denominator: the weights no longer sum to one."""
    return attention(query, key, value, eps=1e-6)


def without_own_key(query, key, value):
    """Mask out the diagonal, too: the first token sees no key, and is 0 / 0."""
    q, k = (np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in (query, key))
    scores = np.tril(q @ k.swapaxes(-1, -2), -1)
    with np.errstate(invalid="ignore"):
        return (scores @ value) / scores.sum(-1, keepdims=True)
