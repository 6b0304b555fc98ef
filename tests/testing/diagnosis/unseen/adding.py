"""Unseen kernels of operators that add, with and without decays and normalisers."""

from itertools import pairwise

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


def features(x):
    """Return ``elu(x) + 1``."""
    x = wide(x)
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


@unseen(
    "linear_attention",
    "pairs inside chunks of 32 are scaled by K^-0.5, those across edges are not",
)
def scale_inside_chunks_only(faulty):
    def linear_attention(query, key, value):
        q, k, v = features(query), features(key), wide(value)
        output = np.zeros_like(v)
        memory, z = started(None, k, v), np.zeros_like(k.sum(-2))
        factor = q.dtype.type(q.shape[-1] ** -0.5 if faulty else 1)
        for first in range(0, v.shape[-2], 32):
            at = (..., slice(first, first + 32), slice(None))
            scores = factor * np.tril(q[at] @ np.swapaxes(k[at], -1, -2))
            numerator = scores @ v[at] + q[at] @ memory
            denominator = scores.sum(-1) + (q[at] @ z[..., None])[..., 0]
            output[at] = numerator / denominator[..., None]
            memory = memory + np.swapaxes(k[at], -1, -2) @ v[at]
            z = z + k[at].sum(-2)
        return output.astype(query.dtype)

    return linear_attention


@unseen("linear_attention_noncausal", "keys beyond the number of queries are lost")
def keys_beyond_queries_lost(faulty):
    def linear_attention(query, key, value):
        q, k, v = features(query), features(key), wide(value)
        if faulty and q.shape[-2]:
            k, v = k[..., : q.shape[-2], :], v[..., : q.shape[-2], :]
        numerator = q @ (np.swapaxes(k, -1, -2) @ v)
        return (numerator / (q @ k.sum(-2)[..., None])).astype(query.dtype)

    return linear_attention


@unseen(
    "linear_attention_noncausal",
    "key channels past a multiple of 8 are missing in the normaliser",
)
def channels_missing_in_normalizer(faulty):
    def linear_attention(query, key, value):
        q, k, v = features(query), features(key), wide(value)
        numerator, z = q @ (np.swapaxes(k, -1, -2) @ v), k.sum(-2)
        width = z.shape[-1]
        # Of fewer than eight channels, the scalar loop takes all.
        whole = width // 8 * 8 if faulty and width > 8 else width
        denominator = q[..., :whole] @ z[..., :whole, None]
        return (numerator / denominator).astype(query.dtype)

    return linear_attention


@unseen("rebased", "the normaliser of earlier chunks of 48 is lost")
def normalizer_of_earlier_chunks_lost(faulty):
    def squares(x):
        outer = x[..., :, None] * x[..., None, :]
        return outer.reshape(*x.shape[:-1], x.shape[-1] ** 2)

    def rebased(query, key, value, *, scale=None, initial_state=None):
        q, k, v = squares(scaled(query, scale)), squares(wide(key)), wide(value)
        output = np.zeros_like(v)
        memory, z = started(None, k, v), np.zeros((*v.shape[:-2], k.shape[-1]), v.dtype)
        if initial_state is not None:
            memory, z = (wide(x) for x in initial_state)
        for first in range(0, v.shape[-2], 48):
            at = (..., slice(first, first + 48), slice(None))
            scores = np.tril(q[at] @ np.swapaxes(k[at], -1, -2))
            denominator = scores.sum(-1)
            if not faulty:
                denominator = denominator + (q[at] @ z[..., None])[..., 0]
            numerator = scores @ v[at] + q[at] @ memory
            output[at] = numerator / denominator[..., None]
            memory = memory + np.swapaxes(k[at], -1, -2) @ v[at]
            z = z + k[at].sum(-2)
        return output.astype(query.dtype), (memory, z)

    return rebased


@unseen("gla", "every tile of 16 value channels is stored at the first")
def value_tiles_at_offset_zero(faulty):
    def gla(query, key, value, log_decay=None, *, scale=None, initial_state=None):
        q, k, v = scaled(query, scale), wide(key), wide(value)
        g, state = log_decays(log_decay, k), started(initial_state, k, v)
        output = np.zeros_like(v)
        for t in range(v.shape[-2]):
            state = np.exp(column(g, t)) * state + column(k, t) * row(v, t)
            read = (row(q, t) @ state)[..., 0, :]
            for first in range(0, v.shape[-1], 16):
                tile = read[..., first : first + 16]
                start = 0 if faulty else first
                output[..., t, start : start + tile.shape[-1]] = tile
        return output.astype(query.dtype), state

    return gla


def _hgrn(gates, before):
    """Return a kernel of HGRN; its gates and initial state are changed first."""

    def hgrn(value, log_decay=None, *, initial_state=None):
        x = wide(value)
        g, output = gates(log_decays(log_decay, x)), np.zeros_like(x)
        state = np.zeros((*x.shape[:-2], 1, x.shape[-1]), x.dtype)
        if initial_state is not None:
            state = before(wide(initial_state), x.shape[-2])
        for t in range(x.shape[-2]):
            state = np.exp(row(g, t)) * state + row(x, t)
            output[..., t, :] = state[..., 0, :]
        return output.astype(value.dtype), state

    return hgrn


@unseen(
    "hgrn",
    "in sequences of fewer than 8 tokens the gates of the token before are applied",
    "state_split",
)
def gates_late_in_short_sequences(faulty):
    def late(g):
        if not faulty or g.shape[-2] >= 8:
            return g
        return np.concatenate([np.zeros_like(g[..., :1, :]), g[..., :-1, :]], axis=-2)

    return _hgrn(late, lambda state, length: state)


@unseen("hgrn", "sequences of one token ignore the initial state", "state_split")
def initial_state_ignored_by_one_token(faulty):
    def ignored(state, length):
        return state * 0 if faulty and length == 1 else state

    return _hgrn(lambda g: g, ignored)


@unseen(
    "retention",
    "the final state is decayed to the end of the last chunk of 16",
    "state_value",
)
def final_state_decayed_by_padding(faulty):
    def retention(query, key, value, *, scale=None, initial_state=None):
        q, k, v = scaled(query, scale), wide(key), wide(value)
        state, output = started(initial_state, k, v), np.zeros_like(v)
        g = np.log1p(-(2.0 ** -(5.0 + np.arange(v.shape[-3]))))[:, None, None]
        decay = np.exp(g).astype(v.dtype)
        for t in range(v.shape[-2]):
            state = decay * state + column(k, t) * row(v, t)
            output[..., t, :] = (row(q, t) @ state)[..., 0, :]
        padding = -v.shape[-2] % 16 if faulty else 0
        return output.astype(query.dtype), decay**padding * state

    return retention


@unseen("simple_gla", "an empty packed sequence returns zeros", "packed_states")
def empty_sequence_returns_zeros(faulty):
    def simple_gla(
        query,
        key,
        value,
        log_decay=None,
        *,
        scale=None,
        initial_state=None,
        cu_seqlens=None,
    ):
        q, k, v = scaled(query, scale), wide(key), wide(value)
        decay = np.exp(log_decays(log_decay, v[..., :1]))
        edges = [0, v.shape[-2]] if cu_seqlens is None else [int(n) for n in cu_seqlens]
        packed, output, states = cu_seqlens is not None, np.zeros_like(v), []
        for n, (first, last) in enumerate(pairwise(edges)):
            own = initial_state
            if packed and own is not None:
                own = own[n : n + 1]
            state = started(own, k, v)
            for t in range(first, last):
                state = column(decay, t) * state + column(k, t) * row(v, t)
                output[..., t, :] = (row(q, t) @ state)[..., 0, :]
            states.append(state * 0 if faulty and packed and first == last else state)
        return output.astype(query.dtype), np.concatenate(states)

    return simple_gla


def _levels(scales, moved):
    """Return a kernel of log-linear attention, a Fenwick tree of memories.

    `scales` changes the scales of levels; `moved` takes the memories of a token that
    are decayed and those that are not, and returns those that move up.
    """

    def log_linear_attention(
        query,
        key,
        value,
        log_decay=None,
        level_scales=None,
        *,
        scale=None,
        position=0,
        initial_state=None,
    ):
        q, k, v = scaled(query, 1.0 if scale is None else scale), wide(key), wide(value)
        g, level = log_decays(log_decay, v[..., :1]), scales(wide(level_scales))
        size = (*v.shape[:-2], level.shape[-1], k.shape[-1], v.shape[-1])
        state = (
            np.zeros(size, v.dtype) if initial_state is None else wide(initial_state)
        )
        output = np.zeros_like(v)
        for t in range(v.shape[-2]):
            before, state = state, np.exp(column(g, t)[..., None]) * state
            state[..., 0, :, :] = column(k, t) * row(v, t)
            reads = (q[..., t, None, None, :] @ state)[..., 0, :]
            output[..., t, :] = (column(level, t) * reads).sum(-2)
            following = position + t + 1
            end = (following & -following).bit_length()
            above = moved(state, before)[..., 1:end, :, :].sum(-3)
            above = above + state[..., 0, :, :]
            state[..., :end, :, :] = 0
            if end < state.shape[-3]:
                state[..., end, :, :] = above
        return output.astype(query.dtype), state

    return log_linear_attention


@unseen("log_linear_attention", "levels above 3 are read with the scale of level 3")
def scales_of_high_levels_alike(faulty):
    def alike(level):
        level = level.copy()
        level[..., 4:] = level[..., 3:4]
        return level

    return _levels(alike if faulty else np.copy, lambda decayed, before: decayed)


@unseen(
    "log_linear_attention",
    "a memory that moves up a level is not decayed by the token that moves it",
)
def moved_memory_not_decayed(faulty):
    return _levels(np.copy, lambda decayed, before: before if faulty else decayed)
