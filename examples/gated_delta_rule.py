"""The gated delta rule as its author might write it, and the same one with a flaw.

Judge them:

    linkern verify examples/gated_delta_rule.py:gated_delta_rule --op gated_delta_rule
    linkern verify examples/gated_delta_rule.py:with_stale_read --op gated_delta_rule
"""

import numpy as np


def gated_delta_rule(q, k, v, g, beta, scale=None, initial_state=None, reads="decayed"):
    """Gated delta rule, one token after the other.

    Parameters
    ----------
    q, k, v : array (batch, heads, time, dim)
        Queries, keys and values.
    g : array (batch, heads, time)
        Natural logarithms of the decays.
    beta : array (batch, heads, time)
        How much of what is found under a key is replaced.
    scale : float, optional
        Factor on the queries.
    initial_state : array (batch, heads, key dim, value dim), optional
        What earlier tokens left behind.

    Returns
    -------
    output, state : array
        What the queries read, and what is left behind for later tokens.
    """
    # Sums are kept in float32 or wider, whatever the inputs are.
    sums = np.result_type(q.dtype, np.float32)
    q, k, decay = q.astype(sums), k.astype(sums), np.exp(g.astype(sums))
    q = q * sums.type(q.shape[-1] ** -0.5 if scale is None else scale)
    state = np.zeros((*k.shape[:2], k.shape[-1], v.shape[-1]), sums)
    if initial_state is not None:
        state = initial_state
    output = np.empty_like(v)
    for t in range(v.shape[2]):
        key, before = k[:, :, t, :, None], state
        state = decay[:, :, t, None, None] * state
        found = (key * (state if reads == "decayed" else before)).sum(axis=-2)
        written = beta[:, :, t, None] * (v[:, :, t] - found)
        state = state + key * written[:, :, None, :]
        output[:, :, t] = (q[:, :, t, :, None] * state).sum(axis=-2)
    return output, state


def with_stale_read(q, k, v, g, beta, scale=None, initial_state=None):
    """Take off what was found before the decay: more than is there."""
    return gated_delta_rule(q, k, v, g, beta, scale, initial_state, reads="undecayed")
