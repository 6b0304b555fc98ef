"""Linear attention in Triton, of (B, H, T, D): right, and with one fault each."""

import torch
import triton
import triton.language as tl
from triton.language import exp
from triton.language.extra import libdevice

TILE = 16
TILES = [triton.Config({"BT": tile}) for tile in (16, 32)]


@triton.jit
def rows_of(k, cols, columns, T, K: tl.constexpr):
    mask = (cols[:, None] < T) & (columns[None, :] < K)
    return tl.load(k + cols[:, None] * K + columns[None, :], mask=mask, other=0.0)


@triton.jit
def forward(
    q,
    k,
    v,
    o,
    T,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    PAST: tl.constexpr,
    WIDE: tl.constexpr,
    ADDS: tl.constexpr,
    BT: tl.constexpr,
):
    i_t, i_bh = tl.program_id(0), tl.program_id(1)
    q += i_bh * T * K
    k += i_bh * T * K
    v += i_bh * T * V
    o += i_bh * T * V
    rows = i_t * BT + tl.arange(0, BT)
    columns, values = tl.arange(0, BK), tl.arange(0, BV)
    b_q = rows_of(q, rows, columns, T, K)
    total = tl.zeros([BT, BV], dtype=tl.float32)
    for i_s in range(i_t + 1):
        cols = (i_s * BT).to(tl.int64) + tl.arange(0, BT)
        b_k = rows_of(k, cols, columns, T + PAST, K)
        b_v = rows_of(v, cols, values, T, V).to(tl.float32)
        scores = tl.dot(b_q, tl.trans(b_k))
        scores = tl.where(rows[:, None] >= cols[None, :], scores, 0.0)
        total += tl.dot(scores, b_v, input_precision="bf16x3")
    inside = (rows[:, None] < T + WIDE) & (values[None, :] < V)
    places = o + rows[:, None] * V + values[None, :]
    if ADDS:
        total += tl.load(places, mask=inside, other=0.0)
    tl.store(places, total, mask=inside)


# Triton refuses a key that names no argument from 3.9 on; older packages have some.
tuned = triton.autotune(configs=TILES, key=["T", "STAGE"])(forward)
WARPS = [triton.Config({"BT": 64}, num_warps=n) for n in (1, 2)]
tuned_too_far = triton.autotune(configs=[*WARPS, *TILES], key=["T"])(forward)


def launched(
    q, k, v, *, past=0, wide=0, adds=False, fewer=0, kernel=forward, grid=TILE
):
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    (batch, heads, length, keys), values = q.shape, v.shape[-1]
    o = torch.empty_like(v)
    fixed = {"BT": TILE} if kernel is forward else {}
    widths = [max(16, triton.next_power_of_2(n)) for n in (keys, values)]
    tiles = triton.cdiv(length, grid) - fewer
    if tiles > 0:
        sizes = (length, keys, values, *widths, past, wide, adds)
        kernel[(tiles, batch * heads)](q, k, v, o, *sizes, **fixed)
    return o


def right(query, key, value):
    return launched(query, key, value)


def autotuned(query, key, value):
    return launched(query, key, value, kernel=tuned)


def reads_past_the_end(query, key, value):
    return launched(query, key, value, past=1)


def writes_past_the_end(query, key, value):
    return launched(query, key, value, wide=1)


def leaves_the_last_tile(query, key, value):
    return launched(query, key, value, fewer=1)


def adds_to_empty_memory(query, key, value):
    return launched(query, key, value, adds=True)


class Attention(torch.autograd.Function):
    """Attention whose gradients are attentions, the other way around in time."""

    @staticmethod
    def forward(ctx, q, k, v, past):
        ctx.save_for_backward(q, k, v)
        ctx.past = past
        return launched(q, k, v)

    @staticmethod
    def backward(ctx, do):
        q, k, v = ctx.saved_tensors
        past = ctx.past
        dq = launched(do, v, k, past=past)
        flipped = [x.flip(-2) for x in (q, k, v, do)]
        dk = launched(flipped[2], flipped[3], flipped[0]).flip(-2)
        dv = launched(flipped[1], flipped[0], flipped[3]).flip(-2)
        return dq, dk, dv, None


def with_gradients(query, key, value):
    return Attention.apply(query, key, value, 0)


def reads_past_the_end_backwards(query, key, value):
    return Attention.apply(query, key, value, 1)


def asks_for_a_device(query, key, value):
    assert query.is_cuda
    with torch.cuda.device(query.device.index), torch.cpu.device(None):
        properties = torch.cuda.get_device_properties(0)
        driver = triton.runtime.driver.active.utils.get_device_properties(0)
        count = driver["multiprocessor_count"]
        assert properties.multi_processor_count == count
        return launched(query, key, value)


@torch.compile
def halved(x):
    return x / 2


def calls_what_is_compiled(query, key, value):
    return 2 * launched(query, key, halved(value))


def needs_a_device(query, key, value):
    if query.device.type != "cuda":
        msg = "expected tensors on a CUDA device"
        raise RuntimeError(msg)
    return launched(query, key, value)


@triton.jit
def unsupported(q):
    x = tl.load(q)
    y = tl.inline_asm_elementwise("", "=r,r", [x], tl.float32, True, 1)
    tl.store(q, y)


@triton.jit
def mismatched(q):
    tl.store(q, tl.arange(0, 16) + tl.arange(0, 32))


def uses_assembly(query, key, value):
    unsupported[(1,)](query.contiguous())


def does_not_broadcast(query, key, value):
    mismatched[(1,)](query.contiguous())


@triton.jit
def counted(counts, total, SIZE: tl.constexpr):
    tl.atomic_add(counts + SIZE, 1)
    tl.atomic_cas(counts - 1, 0, 1)
    tl.store(total, tl.load(counts))


def counts_out_of_bounds(query, key, value):
    counts = torch.zeros(4, dtype=torch.int32)
    counted[(1,)](counts, torch.zeros(1, dtype=torch.int32), 4)
    return launched(query, key, value)


@triton.jit
def copied(table, target, SIZE: tl.constexpr):
    source = tl.load(table).to(tl.pointer_type(tl.float32))
    tl.store(target + tl.arange(0, SIZE), tl.load(source + tl.arange(0, SIZE)))


def loads_through_a_table(query, key, value):
    source = torch.ones(8)
    table = torch.tensor([source.data_ptr()], dtype=torch.int64)
    for size in (8, 16):
        copied[(1,)](table, torch.zeros(16), size)
    return launched(query, key, value)


@triton.jit
def with_names(x, o, SIZE: tl.constexpr):
    places = tl.arange(0, SIZE)
    # A scalar comparison beside those of a block is a mask like them.
    mask = (places < SIZE) & (tl.program_id(0).to(tl.int64) < 1)
    b = tl.load(x + places, mask=mask, other=0.0).to(tl.float32)
    tl.store(o + places, libdevice.tanh(b) + exp(b) - exp(b), mask=mask)


def tanh_of_values(query, key, value, kernel=with_names):
    value = value.contiguous()
    o = torch.empty_like(value)
    kernel[(1,)](value.flatten()[:16], o, 16)
    o.flatten()[16:] = value.flatten()[16:].tanh()
    return o


@triton.jit
def approximated(x):
    """Return `tanh` by instructions of PTX: ``1 - 2 / (2^(2 x / ln 2) + 1)``."""
    power = tl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;",
        "=f,f",
        [x * 2.8853900817779268],
        tl.float32,
        True,
        1,
    )
    return 1 - 2 * tl.inline_asm_elementwise(
        "rcp.approx.f32  $0,$1;", "=f,f", [power + 1], tl.float32, True, 1
    )


@triton.jit
def with_assembly(x, o, SIZE: tl.constexpr):
    places = tl.arange(0, SIZE)
    tl.store(o + places, approximated(tl.load(x + places)))


def tanh_by_assembly(query, key, value):
    return tanh_of_values(query, key, value, with_assembly)


def wrong_in_one_configuration(query, key, value):
    """Launch a grid of tiles of 64, also where they have 16 tokens."""
    return launched(query, key, value, kernel=tuned_too_far, grid=64)


# Faults of the configuration with tiles of 16 alone.
STATE, TURNS, FUTURE = 1, 2, 3


@triton.autotune(configs=TILES, key=["T"])
@triton.jit
def scan(
    q,
    k,
    v,
    first,
    o,
    last,
    turn,
    T,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    FAULT: tl.constexpr,
    BT: tl.constexpr,
):
    i_bh = tl.program_id(0)
    q, k, v, o = q + i_bh * T * K, k + i_bh * T * K, v + i_bh * T * V, o + i_bh * T * V
    columns, values = tl.arange(0, BK), tl.arange(0, BV)
    places = i_bh * K * V + columns[:, None] * V + values[None, :]
    whole = (columns[:, None] < K) & (values[None, :] < V)
    state = tl.load(first + places, mask=whole, other=0.0)
    kept = state
    if FAULT == 3:  # the size of the last value of all says how scores are summed
        turn = (tl.abs(tl.load(v + T * V - 1)) > 1).to(tl.int32)
    for begin in range(0, T, BT):
        rows = begin + tl.arange(0, BT)
        b_q, b_k = rows_of(q, rows, columns, T, K), rows_of(k, rows, columns, T, K)
        b_v = rows_of(v, rows, values, T, V)
        seen = rows[:, None] >= rows[None, :]
        scores = tl.where(seen, tl.dot(b_q, tl.trans(b_k)), 0.0)
        read = tl.dot(scores, b_v)
        if (FAULT > 1) & (BT == 16):  # another order of the same sum
            other = tl.sum(scores[:, :, None] * b_v[None, :, :], 1)
            read = tl.where(turn == 1, other, read)
        here = (rows[:, None] < T) & (values[None, :] < V)
        b_o = read + tl.dot(b_q, state)
        tl.store(o + rows[:, None] * V + values[None, :], b_o, mask=here)
        state += tl.dot(tl.trans(b_k), b_v)
        kept = tl.where((FAULT == 1) & (BT == 16) & (begin + BT > T), kept, state)
    tl.store(last + places, kept, mask=whole)


calls = [0]


def scanned(query, key, value, initial_state=None, *, fault=0):
    q, k, v = query.contiguous(), key.contiguous(), value.contiguous()
    (batch, heads, length, keys), values = q.shape, v.shape[-1]
    first = initial_state
    if first is None:
        first = torch.zeros(batch, heads, keys, values)
    o, last = torch.empty_like(v), torch.empty_like(first)
    calls[0] += 1
    widths = [max(16, triton.next_power_of_2(n)) for n in (keys, values)]
    sizes = (calls[0] % 2, length, keys, values, *widths, fault)
    scan[(batch * heads,)](q, k, v, first.contiguous(), o, last, *sizes)
    return o, last


def with_a_state(query, key, value, initial_state=None):
    return scanned(query, key, value, initial_state)


def state_wrong_in_one_configuration(query, key, value, initial_state=None):
    """Return a state without the last tile where tiles have 16 tokens."""
    return scanned(query, key, value, initial_state, fault=STATE)


def turns_in_one_configuration(query, key, value, initial_state=None):
    """Sum in another order at every second call where tiles have 16 tokens."""
    return scanned(query, key, value, initial_state, fault=TURNS)


def future_in_one_configuration(query, key, value, initial_state=None):
    """Sum in another order if the last value is large, in tiles of 16 tokens."""
    return scanned(query, key, value, initial_state, fault=FUTURE)
