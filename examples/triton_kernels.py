"""Three Triton kernels as their authors might write them, and each with a fault.

`docs/without-a-gpu.md` judges them on a CPU:

    linkern verify examples/triton_kernels.py:simple_gla --op simple_gla --interpret
"""

import torch
import triton
import triton.language as tl

CHUNK = 16


@triton.jit
def features(x):
    """Return elu(x) + 1."""
    return tl.where(x > 0, x + 1, tl.exp(tl.minimum(x, 0)))


@triton.jit
def attention_kernel(
    q,
    k,
    v,
    o,
    T,
    K: tl.constexpr,
    V: tl.constexpr,
    BT: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """Write the rows of one tile: the sum over all tiles of keys up to it."""
    tile, head = tl.program_id(0), tl.program_id(1)
    q, k, v, o = q + head * T * K, k + head * T * K, v + head * T * V, o + head * T * V
    rows, channels, columns = (
        tile * BT + tl.arange(0, BT),
        tl.arange(0, BK),
        tl.arange(0, BV),
    )
    inside = (rows[:, None] < T) & (channels[None, :] < K)
    query = features(tl.load(q + rows[:, None] * K + channels, mask=inside, other=0.0))
    query = tl.where(inside, query, 0.0)
    numerator = tl.zeros([BT, BV], tl.float32)
    denominator = tl.zeros([BT], tl.float32)
    for other in range(tile + 1):
        tokens = other * BT + tl.arange(0, BT)
        inside = (tokens[:, None] < T) & (channels[None, :] < K)
        key = features(
            tl.load(k + tokens[:, None] * K + channels, mask=inside, other=0.0)
        )
        here = (tokens[:, None] < T) & (columns[None, :] < V)
        value = tl.load(v + tokens[:, None] * V + columns, mask=here, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee")
        seen = (rows[:, None] + AHEAD >= tokens[None, :]) & (tokens[None, :] < T)
        scores = tl.where(seen, scores, 0.0)
        numerator += tl.dot(scores, value.to(tl.float32), input_precision="ieee")
        denominator += tl.sum(scores, 1)
    here = (rows[:, None] < T) & (columns[None, :] < V)
    tl.store(
        o + rows[:, None] * V + columns, numerator / denominator[:, None], mask=here
    )


def linear_attention(query, key, value):
    """Return causal linear attention with elu(x) + 1 of (batch, heads, time, dim)."""
    return _attention(query, key, value, ahead=0)


def one_token_ahead(query, key, value):
    """Mask the scores one token too late: rows see the next token of their tile."""
    return _attention(query, key, value, ahead=1)


def _attention(query, key, value, ahead):
    q, k, v = (x.contiguous() for x in (query, key, value))
    (batch, heads, length, keys), values = q.shape, v.shape[-1]
    o = torch.empty_like(v)
    if o.numel():
        grid = triton.cdiv(length, CHUNK), batch * heads
        widths = _width(keys), _width(values)
        attention_kernel[grid](q, k, v, o, length, keys, values, CHUNK, *widths, ahead)
    return o


@triton.jit
def gla_kernel(
    q,
    k,
    v,
    g,
    o,
    first,
    last,
    scale,
    T,
    K: tl.constexpr,
    V: tl.constexpr,
    BT: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    WHOLE: tl.constexpr,
    PAST: tl.constexpr,
):
    """Go through the chunks of one head, with its state in registers."""
    head = tl.program_id(0)
    q, k, v, g = q + head * T * K, k + head * T * K, v + head * T * V, g + head * T
    o, channels, columns = o + head * T * V, tl.arange(0, BK), tl.arange(0, BV)
    places = head * K * V + channels[:, None] * V + columns[None, :]
    whole = (channels[:, None] < K) & (columns[None, :] < V)
    state = tl.load(first + places, mask=whole, other=0.0)
    if WHOLE:
        tl.store(last + places, state, mask=whole)
    for begin in range(0, T, BT):
        tokens = begin + tl.arange(0, BT)
        keys = (tokens[:, None] < T) & (channels[None, :] < K)
        values = (tokens[:, None] < T + PAST) & (columns[None, :] < V)
        query = (
            tl.load(q + tokens[:, None] * K + channels, mask=keys, other=0.0) * scale
        )
        key = tl.load(k + tokens[:, None] * K + channels, mask=keys, other=0.0)
        value = tl.load(v + tokens[:, None] * V + columns, mask=values, other=0.0)
        gate = tl.load(g + tokens, mask=tokens < T, other=0.0)
        # Sums are never subtracted: gates may be -inf.
        place, until = tl.arange(0, BT), tl.cumsum(gate, 0)
        later = place[None, None, :] > place[None, :, None]
        later = later & (place[None, None, :] <= place[:, None, None])
        between = tl.sum(tl.where(later, gate[None, None, :], 0.0), 2)
        after = tl.where(place[None, :] > place[:, None], gate[None, :], 0.0)
        decay = tl.where(place[:, None] >= place[None, :], tl.exp(between), 0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * decay
        read = tl.dot(query * tl.exp(until)[:, None], state, input_precision="ieee")
        output = read + tl.dot(scores, value, input_precision="ieee")
        here = (tokens[:, None] < T) & (columns[None, :] < V)
        tl.store(o + tokens[:, None] * V + columns, output, mask=here)
        rest = tl.trans(key * tl.exp(tl.sum(after, 1))[:, None])
        state *= tl.exp(tl.sum(gate, 0))
        state += tl.dot(rest, value, input_precision="ieee")
        if WHOLE:  # noqa: SIM102 -- known to the compiler, and the rest is not
            if begin + BT <= T:
                tl.store(last + places, state, mask=whole)
    if not WHOLE:
        tl.store(last + places, state, mask=whole)


def simple_gla(query, key, value, log_decay, scale, initial_state=None):
    """Return gated linear attention, with one decay for each token, and its state."""
    return _gla(query, key, value, log_decay, scale, initial_state)


def state_without_tail(query, key, value, log_decay, scale, initial_state=None):
    """Store the state after whole chunks only: a tail is not in it."""
    return _gla(query, key, value, log_decay, scale, initial_state, whole=True)


def tail_beyond_the_end(query, key, value, log_decay, scale, initial_state=None):
    """Mask the values one token too late: the last tile reads past their end."""
    return _gla(query, key, value, log_decay, scale, initial_state, past=1)


def _gla(query, key, value, log_decay, scale, state, *, whole=False, past=0):
    q, k, v, g = (x.contiguous() for x in (query, key, value, log_decay))
    (batch, heads, length, keys), values = q.shape, v.shape[-1]
    first = torch.zeros(batch, heads, keys, values) if state is None else state
    o, last = torch.empty_like(v), torch.empty_like(first)
    sizes = length, keys, values, CHUNK, _width(keys), _width(values)
    tensors = q, k, v, g, o, first.contiguous(), last
    gla_kernel[(batch * heads,)](*tensors, scale, *sizes, whole, past)
    return o, last


@triton.autotune([triton.Config({"BV": size}) for size in (16, 32)], key=["T"])
@triton.jit
def delta_kernel(
    q,
    k,
    v,
    beta,
    o,
    scale,
    T,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
):
    """Go through the tokens of one head and one tile of value channels."""
    tile, head = tl.program_id(0), tl.program_id(1)
    q, k, v, o = q + head * T * K, k + head * T * K, v + head * T * V, o + head * T * V
    channels, columns = tl.arange(0, BK), tile * BV + tl.arange(0, BV)
    state = tl.zeros([BK, BV], tl.float32)
    for t in range(T):
        key = tl.load(k + t * K + channels, mask=channels < K, other=0.0)
        query = tl.load(q + t * K + channels, mask=channels < K, other=0.0) * scale
        value = tl.load(v + t * V + columns, mask=columns < V, other=0.0)
        rate = tl.load(beta + head * T + t)
        read = tl.sum(state * key[:, None], 0)
        state += key[:, None] * (rate * (value - read))[None, :]
        tl.store(
            o + t * V + columns, tl.sum(state * query[:, None], 0), mask=columns < V
        )


def delta_rule(query, key, value, beta, scale):
    """Return the delta rule, computed token by token."""
    return _delta(query, key, value, beta, scale, triton.cdiv)


def grid_of_wide_tiles(query, key, value, beta, scale):
    """Launch as many tiles as the wider configuration needs, in the other one too."""
    return _delta(query, key, value, beta, scale, _of_wide_tiles)


def _of_wide_tiles(values, _):
    return triton.cdiv(values, 32)


def _delta(query, key, value, beta, scale, tiles):
    q, k, v, b = (x.contiguous() for x in (query, key, value, beta))
    (batch, heads, length, keys), values = q.shape, v.shape[-1]
    o = torch.empty_like(v)
    if o.numel():
        grid = lambda meta: (tiles(values, meta["BV"]), batch * heads)  # noqa: E731
        delta_kernel[grid](q, k, v, b, o, scale, length, keys, values, _width(keys))
    return o


def _width(size):
    return max(16, triton.next_power_of_2(size))
