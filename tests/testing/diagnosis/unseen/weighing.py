"""Unseen kernels of operators that weigh by a softmax, or solve a system."""

import numpy as np

from tests.testing.diagnosis.unseen.parts import (
    column,
    log_decays,
    row,
    scaled,
    unseen,
    wide,
)


def _softmax(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def _joined(mean, weight, value, logit):
    """Return a mean with one value more, and the logarithm of its weight."""
    largest = np.maximum(weight, logit)
    old, new = np.exp(weight - largest), np.exp(logit - largest)
    return (old * mean + new * value) / (old + new), largest + np.log(old + new)


@unseen("rwkv4", "log-decays are clamped at -2")
def rates_clamped(faulty):
    def rwkv4(key, value, log_decay, bonus=None, *, initial_state=None):
        k, v, g = wide(key), wide(value), wide(log_decay)
        g = np.maximum(g, -2) if faulty else g
        u = np.zeros_like(g) if bonus is None else wide(bonus)
        mean = np.zeros((*v.shape[:-2], v.shape[-1]), v.dtype)
        weight = np.full_like(mean, -np.inf)
        if initial_state is not None:
            mean, weight = wide(initial_state[0])[..., 0, :], wide(initial_state[1])
        output = np.zeros_like(v)
        for t in range(v.shape[-2]):
            x, logit = v[..., t, :], k[..., t, :]
            output[..., t, :] = _joined(mean, weight, x, u + logit)[0]
            mean, weight = _joined(mean, weight + g, x, logit)
        return output.astype(value.dtype), (mean[..., None, :], weight)

    return rwkv4


@unseen("abc", "the weights of slots start anew in every chunk of 32")
def slot_weights_start_anew(faulty):
    def abc(query, key, value, slots, *, scale=None, initial_state=None):
        q, k, v, s = scaled(query, scale), wide(key), wide(value), wide(slots)
        width, rows = k.shape[-1], np.concatenate([wide(key), wide(value)], axis=-1)
        lead, count = v.shape[:-2], s.shape[-1]
        memory = np.zeros((*lead, count, rows.shape[-1]), v.dtype)
        weight = np.full((*lead, count), -np.inf, v.dtype)
        if initial_state is not None:
            memory, weight = (wide(x) for x in initial_state)
        output = np.zeros_like(v)
        for t in range(v.shape[-2]):
            if faulty and t and t % 32 == 0:
                weight = np.full_like(weight, -np.inf)
            logit = s[..., t, :]
            total = np.logaddexp(weight, logit)
            kept, new = np.exp(weight - total), np.exp(logit - total)
            memory = kept[..., None] * memory + new[..., None] * row(rows, t)
            weight = total
            chosen = _softmax((memory[..., :width] @ column(q, t))[..., 0])
            read = chosen[..., None, :] @ memory[..., width:]
            output[..., t, :] = read[..., 0, :]
        return output.astype(query.dtype), (memory, weight)

    return abc


@unseen("gsa", "the last token is not written if the length is a multiple of 16")
def last_token_of_whole_chunks_not_written(faulty):
    def gsa(
        query, key, value, slots, log_decay=None, *, scale=None, initial_state=None
    ):
        q, k, v, s = scaled(query, scale), wide(key), wide(value), wide(slots)
        g, width = log_decays(log_decay, s), k.shape[-1]
        rows = np.concatenate([k, v], axis=-1)
        state = np.zeros((*v.shape[:-2], s.shape[-1], rows.shape[-1]), v.dtype)
        if initial_state is not None:
            state = wide(initial_state)
        length, output = v.shape[-2], np.zeros_like(v)
        for t in range(length):
            state = np.exp(column(g, t)) * state + column(s, t) * row(rows, t)
            chosen = _softmax((state[..., :width] @ column(q, t))[..., 0])
            read = (chosen[..., None, :] @ state[..., width:])[..., 0, :]
            if not faulty or t + 1 < length or length % 16:
                output[..., t, :] = read
        return output.astype(query.dtype), state

    return gsa


def _mesa(in_matrix, at_edge):
    """Return a kernel of mesa.

    `in_matrix` makes the rate of the matrix of that of the memory; `at_edge` takes the
    matrix and the ridge at every edge of chunks of 16 and returns the matrix.
    """

    def mesa(
        query,
        key,
        value,
        log_decay=None,
        beta=None,
        ridge=None,
        *,
        scale=None,
        initial_state=None,
    ):
        q, k, v = scaled(query, 1.0 if scale is None else scale), wide(key), wide(value)
        g, width = log_decays(log_decay, v[..., :1]), k.shape[-1]
        rate = np.ones_like(g) if beta is None else wide(beta)[..., None]
        added = np.ones(width, q.dtype) if ridge is None else wide(ridge)
        diagonal = added[..., :, None] * np.eye(width, dtype=q.dtype)
        lead = v.shape[:-2]
        matrix = np.zeros((*lead, width, width), v.dtype)
        memory = np.zeros((*lead, width, v.shape[-1]), v.dtype)
        if initial_state is not None:
            state = wide(initial_state)
            matrix, memory = state[..., :width], state[..., width:]
        output = np.zeros_like(v)
        for t in range(v.shape[-2]):
            if t and t % 16 == 0:
                matrix = at_edge(matrix, diagonal)
            decay, b, kt = np.exp(column(g, t)), column(rate, t), column(k, t)
            matrix = decay * matrix + in_matrix(b) * kt * row(k, t)
            memory = decay * memory + b * kt * row(v, t)
            x = np.linalg.solve(matrix + diagonal, column(q, t))
            output[..., t, :] = (np.swapaxes(x, -1, -2) @ memory)[..., 0, :]
        return output.astype(query.dtype), np.concatenate([matrix, memory], axis=-1)

    return mesa


@unseen("mesa", "the ridge is added to the matrix at every edge of chunks of 16")
def ridge_added_at_edges(faulty):
    return _mesa(lambda rate: rate, lambda m, ridge: m + ridge if faulty else m)


@unseen("mesa", "the matrix is written without beta")
def matrix_without_rate(faulty):
    return _mesa(
        lambda rate: np.ones_like(rate) if faulty else rate, lambda m, ridge: m
    )
