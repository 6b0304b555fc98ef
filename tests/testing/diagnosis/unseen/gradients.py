"""Unseen kernels with gradients, which are those of the recurrence token by token."""

import numpy as np

from tests.testing.diagnosis.unseen.adding import features
from tests.testing.diagnosis.unseen.parts import (
    column,
    log_decays,
    row,
    scaled,
    started,
    unseen,
    wide,
)


def _forward(q, k, v, g, u, state):
    """Return output and states; with a bonus `u` the state before a token is read."""
    states, output = [state], np.zeros_like(v)
    for t in range(v.shape[-2]):
        written = column(k, t) * row(v, t)
        state = np.exp(column(g, t)) * state + written
        read = state if u is None else states[-1] + u[..., :, None] * written
        output[..., t, :] = (row(q, t) @ read)[..., 0, :]
        states.append(state)
    return output, states


def _backward(q, k, v, g, u, states, dy, d_final, chunk=None):
    """Return gradients of q, k, v, g, u and of the initial state.

    The gradient of g is that of outputs in its own chunk only, if there are chunks.
    """
    dq, dk, dv, dg = (np.zeros_like(x) for x in (q, k, v, np.broadcast_to(g, k.shape)))
    du = np.zeros_like(q.sum(-2))
    later = np.zeros_like(states[0]) if d_final is None else wide(d_final)
    own = np.zeros_like(later)
    for t in reversed(range(v.shape[-2])):
        if chunk is not None and (t + 1) % chunk == 0:
            later, own = later + own, np.zeros_like(own)
        before, dyt, decay = states[t], row(dy, t), np.exp(column(g, t))
        read = column(q, t) * dyt
        if u is None:
            own = own + read
            dq[..., t, :] = (states[t + 1] * dyt).sum(-1)
        total = later + own
        dk[..., t, :] = (total * row(v, t)).sum(-1)
        dv[..., t, :] = (total * column(k, t)).sum(-2)
        seen = total if chunk is None else own
        dg[..., t, :] = (seen * decay * before).sum(-1)
        later, own = decay * later, decay * own
        if u is not None:
            own = own + read
            qt, kt, along = q[..., t, :], k[..., t, :], (dy * v)[..., t, :].sum(-1)
            along = along[..., None]
            dq[..., t, :] = (before * dyt).sum(-1) + along * u * kt
            dk[..., t, :] += along * u * qt
            dv[..., t, :] += (qt * u * kt).sum(-1)[..., None] * dy[..., t, :]
            du += along * qt * kt
    return dq, dk, dv, dg, du, later + own


def _with_gradients(kernel, vjp):
    kernel.vjp = vjp
    return kernel


@unseen("retention", "the gradient of queries is not scaled", "gradient_value")
def gradient_of_query_not_scaled(faulty):
    def prepared(query, key, value, scale, initial_state):
        q, k, v = scaled(query, scale), wide(key), wide(value)
        g = np.log1p(-(2.0 ** -(5.0 + np.arange(v.shape[-3]))))[:, None, None]
        g = np.broadcast_to(g, (*v.shape[:-1], 1)).astype(v.dtype)
        return q, k, v, g, None, started(initial_state, k, v)

    def retention(query, key, value, *, scale=None, initial_state=None):
        output, states = _forward(*prepared(query, key, value, scale, initial_state))
        return output.astype(query.dtype), states[-1]

    def vjp(
        query, key, value, output_cotangent, initial_state=None, state_cotangent=None
    ):
        *terms, state = prepared(query, key, value, None, initial_state)
        states = _forward(*terms, state)[1]
        dq, dk, dv, _, _, d_state = _backward(
            *terms, states, wide(output_cotangent), state_cotangent
        )
        dq = dq if faulty else scaled(dq, None)
        return (*(x.astype(query.dtype) for x in (dq, dk, dv)), d_state)

    return _with_gradients(retention, vjp)


@unseen(
    "gla",
    "the gradient of log-decays sums to the end of a chunk of 32 only",
    "gradient_value",
)
def gradient_of_gates_to_chunk_end(faulty):
    def prepared(query, key, value, log_decay, scale, initial_state):
        q, k, v = scaled(query, scale), wide(key), wide(value)
        return q, k, v, log_decays(log_decay, k), None, started(initial_state, k, v)

    def gla(query, key, value, log_decay=None, *, scale=None, initial_state=None):
        terms = prepared(query, key, value, log_decay, scale, initial_state)
        output, states = _forward(*terms)
        return output.astype(query.dtype), states[-1]

    def vjp(
        query,
        key,
        value,
        log_decay,
        output_cotangent,
        initial_state=None,
        state_cotangent=None,
    ):
        *terms, state = prepared(query, key, value, log_decay, None, initial_state)
        states = _forward(*terms, state)[1]
        dq, dk, dv, dg, _, d_state = _backward(
            *terms,
            states,
            wide(output_cotangent),
            state_cotangent,
            chunk=32 if faulty else None,
        )
        gradients = (x.astype(query.dtype) for x in (scaled(dq, None), dk, dv, dg))
        return (*gradients, d_state)

    return _with_gradients(gla, vjp)


def _rwkv6(bonus_gradient, value_gradient):
    """Return a kernel of RWKV-6; two of its gradients are changed first.

    `value_gradient` takes the gradient of values and the part of it that is the bonus.
    """

    def prepared(query, key, value, log_decay, bonus, scale, initial_state):
        q, k, v = scaled(query, scale), wide(key), wide(value)
        nothing = np.zeros((k.shape[1], k.shape[-1]), k.dtype)
        u = nothing if bonus is None else wide(bonus)
        return q, k, v, log_decays(log_decay, k), u, started(initial_state, k, v)

    def rwkv6(
        query, key, value, log_decay=None, bonus=None, *, scale=None, initial_state=None
    ):
        terms = prepared(query, key, value, log_decay, bonus, scale, initial_state)
        output, states = _forward(*terms)
        return output.astype(query.dtype), states[-1]

    def vjp(
        query,
        key,
        value,
        log_decay,
        bonus,
        output_cotangent,
        initial_state=None,
        state_cotangent=None,
    ):
        *terms, state = prepared(
            query, key, value, log_decay, bonus, None, initial_state
        )
        states, dy = _forward(*terms, state)[1], wide(output_cotangent)
        dq, dk, dv, dg, du, d_state = _backward(*terms, states, dy, state_cotangent)
        q, k, u = terms[0], terms[1], terms[4]
        of_bonus = (q * u[:, None] * k).sum(-1, keepdims=True) * dy
        dv, du = value_gradient(dv, of_bonus), bonus_gradient(du.sum(0))
        gradients = (scaled(dq, None), dk, dv, dg, du)
        return (*(x.astype(query.dtype) for x in gradients), d_state)

    return _with_gradients(rwkv6, vjp)


@unseen(
    "rwkv6",
    "the gradient of the bonus is that of the first head in every head",
    "gradient_value",
)
def gradient_of_bonus_from_first_head(faulty):
    def of_first_head(du):
        return np.broadcast_to(du[:1], du.shape) if faulty else du

    return _rwkv6(of_first_head, lambda dv, of_bonus: dv)


@unseen("rwkv6", "the gradient of values lacks the bonus", "gradient_value")
def gradient_of_value_without_bonus(faulty):
    return _rwkv6(lambda du: du, lambda dv, of_bonus: dv - of_bonus if faulty else dv)


@unseen(
    "linear_attention",
    "the gradient of keys lacks the path through the normalisers of later chunks of 32",
    "gradient_value",
)
def gradient_through_later_normalizers_lost(faulty):
    def chunks(q, k, v):
        memory, z = started(None, k, v), np.zeros_like(k.sum(-2))
        for first in range(0, v.shape[-2], 32):
            at = (..., slice(first, first + 32), slice(None))
            scores = np.tril(q[at] @ np.swapaxes(k[at], -1, -2))
            denominator = scores.sum(-1, keepdims=True) + q[at] @ z[..., None]
            output = (scores @ v[at] + q[at] @ memory) / denominator
            yield at, scores, memory, z, denominator, output
            memory = memory + np.swapaxes(k[at], -1, -2) @ v[at]
            z = z + k[at].sum(-2)

    def linear_attention(query, key, value):
        q, k, v = features(query), features(key), wide(value)
        output = np.zeros_like(v)
        for at, *_, read in chunks(q, k, v):
            output[at] = read
        return output.astype(query.dtype)

    def vjp(query, key, value, output_cotangent):
        q, k, v = features(query), features(key), wide(value)
        dq, dk, dv = (np.zeros_like(x) for x in (q, k, v))
        d_memory, d_z = started(None, k, v), np.zeros_like(k.sum(-2))
        for at, scores, memory, z, denominator, output in reversed([*chunks(q, k, v)]):
            dn = wide(output_cotangent)[at] / denominator
            dd = -(dn * output).sum(-1, keepdims=True)
            d_scores = np.tril(dn @ np.swapaxes(v[at], -1, -2) + dd)
            dq[at] = d_scores @ k[at] + dn @ np.swapaxes(memory, -1, -2)
            dq[at] += dd * z[..., None, :]
            dk[at] = np.swapaxes(d_scores, -1, -2) @ q[at]
            dk[at] += v[at] @ np.swapaxes(d_memory, -1, -2)
            dk[at] += 0 if faulty else d_z[..., None, :]
            dv[at] = np.swapaxes(scores, -1, -2) @ dn + k[at] @ d_memory
            d_memory = d_memory + np.swapaxes(q[at], -1, -2) @ dn
            d_z = d_z + (q[at] * dd).sum(-2)
        slopes = (np.exp(np.minimum(wide(x), 0)) for x in (query, key))
        dq, dk = (d * slope for d, slope in zip((dq, dk), slopes, strict=True))
        return tuple(x.astype(query.dtype) for x in (dq, dk, dv))

    return _with_gradients(linear_attention, vjp)
