"""Kernels with one part replaced, in ways that no list of mutants holds."""

from dataclasses import replace

import numpy as np

from linkern.testing.kernels.assembly import (
    Parts,
    all_tokens,
    assemble,
    elu_plus_one,
)

__all__ = [
    "at_least",
    "dense",
    "gla",
    "half",
    "lost",
    "part",
    "plus",
    "rounded",
    "softmax",
    "swapped_axes",
    "window",
]


def part(**replaced):
    """Return linear attention in chunks with some parts replaced."""
    return assemble(replace(Parts(), **replaced))


def wide(*arrays):
    return [x.astype(np.result_type(x.dtype, np.float32)) for x in arrays]


def dense(
    weights=np.tril,
    of_divisor=None,
    query_map=elu_plus_one,
    key_map=elu_plus_one,
    divide=lambda n, d: n / d,
    arrange=lambda q, k, v: (q, k, v),
    finish=lambda o: o,
):
    """Return quadratic linear attention with one part replaced."""

    def kernel(query, key, value):
        with np.errstate(all="ignore"):
            q, k, v = arrange(*wide(query, key, value))
            scores = query_map(q) @ np.swapaxes(key_map(k), -1, -2)
            counted = weights(scores)
            divisor = (of_divisor or weights)(scores).sum(-1, keepdims=True)
            return finish(divide(counted @ v, divisor)).astype(query.dtype)

    return kernel


def gla(arrange=lambda q, k, v, g: (q, k, v, g), finish=lambda o: o):
    """Return simple_gla with its inputs or its output changed."""

    def kernel(query, key, value, log_decay):
        q, k, v, g = arrange(*wide(query, key, value, log_decay))
        state = np.zeros((*k.shape[:2], k.shape[-1], v.shape[-1]), q.dtype)
        output = np.zeros_like(v)
        for t in range(q.shape[-2]):
            state = np.exp(g[..., t, None, None]) * state
            state = state + k[..., t, :, None] * v[..., t, None, :]
            output[..., t, :] = (q[..., t, None, :] @ state)[..., 0, :]
        output *= np.asarray(q.shape[-1] ** -0.5, q.dtype)
        return finish(output).astype(query.dtype)

    return kernel


def lost(place):
    """Leave the token at one place of every whole chunk out of the state."""

    def written(first, length, chunk):
        weights = all_tokens(first, length, chunk)
        if length == chunk:
            weights[place] = 0
        return weights

    return written


def window(width):
    def weights(scores):
        i, j = np.arange(scores.shape[-2])[:, None], np.arange(scores.shape[-1])
        return np.tril(scores) * (i - j < width)

    return weights


def rounded(bits):
    def to(x):
        mantissa, exponent = np.frexp(x)
        return np.ldexp(np.round(np.ldexp(mantissa, bits)), exponent - bits).astype(
            x.dtype
        )

    return to


def half(x):
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(x.dtype)


def softmax(x):
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def swapped_axes(kernel):
    def swapped(query, key, value):
        output = kernel(*(np.swapaxes(x, 1, 2) for x in (query, key, value)))
        return np.swapaxes(output, 1, 2)

    return swapped


def plus(eps):
    return lambda n, d: n / (d + np.asarray(eps, d.dtype))


def at_least(eps):
    return lambda n, d: n / np.maximum(d, np.asarray(eps, d.dtype))
