"""Unseen kernels of operators that erase before they write.

Each goes token by token. Where a chunk matters, the memory is in two parts: what was
there before the chunk, and what the chunk has written.
"""

import numpy as np

from tests.testing.diagnosis.unseen.parts import (
    column,
    log_decays,
    row,
    scaled,
    started,
    unseen,
    wide,
)


def _rates(beta, value):
    """Return rates with a channel axis; ones if there are none."""
    if beta is None:
        return np.ones((*value.shape[:-1], 1), value.dtype)
    return wide(beta)[..., None]


@unseen(
    "delta_rule",
    "what the state of earlier chunks of 32 holds is erased with beta twice",
)
def carried_state_erased_with_rate_squared(faulty):
    def delta_rule(query, key, value, beta=None, *, scale=None, initial_state=None):
        q, k, v = scaled(query, scale), wide(key), wide(value)
        rate, output = _rates(beta, v), np.zeros_like(v)
        old = started(initial_state, k, v)
        new = np.zeros_like(old)
        for t in range(v.shape[-2]):
            if t % 32 == 0:
                old, new = old + new, np.zeros_like(old)
            b = column(rate, t)
            written = column(k, t) * b
            old = old - written * (row(k, t) @ old) * (b if faulty else 1)
            new = new + written * (row(v, t) - row(k, t) @ new)
            output[..., t, :] = (row(q, t) @ (old + new))[..., 0, :]
        return output.astype(query.dtype), old + new

    return delta_rule


@unseen("delta_rule", "inside chunks of 16 rows read the token after them")
def reads_next_pseudo_value(faulty):
    def delta_rule(query, key, value, beta=None, *, scale=None, initial_state=None):
        q, k, v = scaled(query, scale), wide(key), wide(value)
        rate, output = _rates(beta, v), np.zeros_like(v)
        state = started(initial_state, k, v)
        for t in range(v.shape[-2]):
            pseudo = column(rate, t) * (row(v, t) - row(k, t) @ state)
            if faulty and t % 16:
                met = (q[..., t - 1, :] * k[..., t, :]).sum(-1, keepdims=True)
                output[..., t - 1, :] += met * pseudo[..., 0, :]
            state = state + column(k, t) * pseudo
            output[..., t, :] = (row(q, t) @ state)[..., 0, :]
        return output.astype(query.dtype), state

    return delta_rule


@unseen(
    "gated_delta_rule",
    "value head h reads query and key of head h mod H",
    value_groups=True,
)
def groups_interleaved(faulty):
    def gated_delta_rule(
        query, key, value, log_decay=None, beta=None, *, scale=None, initial_state=None
    ):
        v, heads = wide(value), np.arange(value.shape[1])
        shared = query.shape[1]
        group = heads % shared if faulty else heads // (len(heads) // max(shared, 1))
        q, k = scaled(query, scale)[:, group], wide(key)[:, group]
        rate, g = _rates(beta, v), log_decays(log_decay, v[..., :1])
        state, output = started(initial_state, k, v), np.zeros_like(v)
        for t in range(v.shape[-2]):
            state = np.exp(column(g, t)) * state
            missing = row(v, t) - row(k, t) @ state
            state = state + column(rate, t) * column(k, t) * missing
            output[..., t, :] = (row(q, t) @ state)[..., 0, :]
        return output.astype(query.dtype), state

    return gated_delta_rule


def _kda(gates, returned):
    """Return a kernel of KDA; its gates and final state are changed first."""

    def kda(
        query, key, value, log_decay=None, beta=None, *, scale=None, initial_state=None
    ):
        q, k, v = scaled(query, scale), wide(key), wide(value)
        rate, g = _rates(beta, v), gates(log_decays(log_decay, k))
        state, output = started(initial_state, k, v), np.zeros_like(v)
        for t in range(v.shape[-2]):
            state = np.exp(column(g, t)) * state
            missing = row(v, t) - row(k, t) @ state
            state = state + column(rate, t) * column(k, t) * missing
            output[..., t, :] = (row(q, t) @ state)[..., 0, :]
        return output.astype(query.dtype), returned(state)

    return kda


def _unchanged(x):
    return x


@unseen("kda", "the sum of gates since the start of a chunk of 16 is clamped at -10")
def sums_of_gates_clamped(faulty):
    def clamped(g):
        g = g.copy()
        for first in range(0, g.shape[-2], 16):
            chunk = g[..., first : first + 16, :]
            sums = np.maximum(np.cumsum(chunk, axis=-2), -10)
            chunk[...] = np.diff(sums, axis=-2, prepend=0)
        return g

    return _kda(clamped if faulty else _unchanged, _unchanged)


@unseen("kda", "the final state is rounded to 8 bits", "state_value")
def final_state_in_bfloat16(faulty):
    def rounded(state):
        mantissa, exponent = np.frexp(state)
        return np.ldexp(np.rint(mantissa * 256) / 256, exponent).astype(state.dtype)

    return _kda(_unchanged, rounded if faulty else _unchanged)


@unseen("gdn2", "head h starts from the initial state of head h // 2", "state_split")
def initial_state_of_shared_heads(faulty):
    def gdn2(
        query,
        key,
        value,
        log_decay=None,
        erase_gate=None,
        write_gate=None,
        *,
        scale=None,
        initial_state=None,
    ):
        q, k, v = scaled(query, scale), wide(key), wide(value)
        state, output = started(initial_state, k, v), np.zeros_like(v)
        if faulty:
            state = state[:, np.arange(state.shape[1]) // 2]
        g = log_decays(log_decay, k)
        erase = k if erase_gate is None else wide(erase_gate) * k
        write = v if write_gate is None else wide(write_gate) * v
        for t in range(v.shape[-2]):
            state = np.exp(column(g, t)) * state
            missing = row(write, t) - row(erase, t) @ state
            state = state + column(k, t) * missing
            output[..., t, :] = (row(q, t) @ state)[..., 0, :]
        return output.astype(query.dtype), state

    return gdn2


@unseen("comba", "across chunks of 16 the key is erased with, not the auxiliary key")
def carried_state_erased_with_key(faulty):
    def comba(
        query,
        key,
        value,
        auxiliary_key,
        log_decay=None,
        beta=None,
        *,
        scale=None,
        initial_state=None,
    ):
        q, k, v, p = scaled(query, scale), wide(key), wide(value), wide(auxiliary_key)
        rate, g = _rates(beta, v), log_decays(log_decay, v[..., :1])
        old, output = started(initial_state, k, v), np.zeros_like(v)
        new = np.zeros_like(old)
        for t in range(v.shape[-2]):
            if t % 16 == 0:
                old, new = old + new, np.zeros_like(old)
            written, decay = column(rate, t) * column(k, t), np.exp(column(g, t))
            old = decay * old - written * (row(k if faulty else p, t) @ old)
            new = decay * new + written * (row(v, t) - row(p, t) @ new)
            output[..., t, :] = (row(q, t) @ (old + new))[..., 0, :]
        return output.astype(query.dtype), old + new

    return comba


@unseen("comba", "the erase reads the state after its decay")
def auxiliary_key_erases_decayed_state(faulty):
    def comba(
        query,
        key,
        value,
        auxiliary_key,
        log_decay=None,
        beta=None,
        *,
        scale=None,
        initial_state=None,
    ):
        q, k, v, p = scaled(query, scale), wide(key), wide(value), wide(auxiliary_key)
        rate, g = _rates(beta, v), log_decays(log_decay, v[..., :1])
        state, output = started(initial_state, k, v), np.zeros_like(v)
        for t in range(v.shape[-2]):
            decayed = np.exp(column(g, t)) * state
            missing = row(v, t) - row(p, t) @ (decayed if faulty else state)
            state = decayed + column(rate, t) * column(k, t) * missing
            output[..., t, :] = (row(q, t) @ state)[..., 0, :]
        return output.astype(query.dtype), state

    return comba


def _rwkv7(gates, removes_decayed):
    """Return a kernel of RWKV-7; its gates are changed first."""

    def rwkv7(
        query,
        key,
        value,
        log_decay=None,
        removal_key=None,
        removal_rate=None,
        *,
        scale=None,
        initial_state=None,
    ):
        q, k, v = scaled(query, 1.0 if scale is None else scale), wide(key), wide(value)
        kappa, g = wide(removal_key), gates(log_decays(log_decay, k))
        back = wide(removal_rate) * kappa
        state, output = started(initial_state, k, v), np.zeros_like(v)
        for t in range(v.shape[-2]):
            decayed = np.exp(column(g, t)) * state
            held = row(kappa, t) @ (decayed if removes_decayed else state)
            state = decayed - column(back, t) * held + column(k, t) * row(v, t)
            output[..., t, :] = (row(q, t) @ state)[..., 0, :]
        return output.astype(query.dtype), state

    return rwkv7


@unseen("rwkv7", "the removal reads the state after its decay")
def removal_after_decay(faulty):
    return _rwkv7(_unchanged, removes_decayed=faulty)


@unseen("rwkv7", "rows in the tail of chunks of 32 do not decay")
def tail_not_decayed(faulty):
    def open_in_tail(g):
        g = g.copy()
        g[..., g.shape[-2] // 32 * 32 :, :] = 0
        return g

    return _rwkv7(open_in_tail if faulty else _unchanged, removes_decayed=False)


@unseen(
    "dplr", "the low-rank part of the state of earlier chunks of 24 has the wrong sign"
)
def carried_low_rank_part_negated(faulty):
    def dplr(
        query, key, value, a, b, log_decay=None, *, scale=None, initial_state=None
    ):
        q, k, v = scaled(query, scale), wide(key), wide(value)
        a, b, g = wide(a), wide(b), log_decays(log_decay, k)
        old, output = started(initial_state, k, v), np.zeros_like(v)
        new = np.zeros_like(old)
        for t in range(v.shape[-2]):
            if t % 24 == 0:
                old, new = old + new, np.zeros_like(old)
            decay, left, right = np.exp(column(g, t)), row(a, t), column(b, t)
            low_rank = right * (left @ old)
            old = decay * old + (-low_rank if faulty else low_rank)
            new = decay * new + right * (left @ new) + column(k, t) * row(v, t)
            output[..., t, :] = (row(q, t) @ (old + new))[..., 0, :]
        return output.astype(query.dtype), old + new

    return dplr
