"""The kernels on tensor cores of what is only added to the memory, as launches.

Where heads are few, each is walked in segments: first all segments from nothing, then
what they add is carried from one to the next, then all again from where they begin.
"""

from typing import Any, NamedTuple

import numpy as np

from linkern.array import dtype_name
from linkern.kernels.cuda.launch import Array, Device, Launch
from linkern.kernels.cuda.layouts import (
    IO,
    address_or_null,
    instance,
    record,
    rows,
)
from linkern.kernels.cuda.plan.chunk_fwd_simt import Call

__all__ = [
    "Cut",
    "State",
    "carry",
    "cut_of",
    "fits",
    "forward",
    "keep",
    "power",
    "whole",
]

# A memory and a normalizer.
State = tuple[Array | None, Array | None]

# What every GPU since compute capability 8.0 gives to a block.
SHARED = 99 << 10
# Segments have no fewer chunks than this: what is read again should not be much.
_FEWEST_CHUNKS = 4
_CARRY_THREADS = 256  # as in carry.cu


class Cut(NamedTuple):
    """How a head is cut; see chunks.cuh.

    Parameters
    ----------
    features, columns : int
        All features of a head, and columns of its values, of one block: powers of two.
    tokens : int
        Of a chunk.
    warps : int
        Of a block.
    """

    features: int
    columns: int
    tokens: int
    warps: int

    def of(self, call: Call) -> str:
        """Return its name in C for the numbers of a call."""
        return instance("Cut", IO[dtype_name(call.query.dtype)], *self)

    def shared(self, itemsize: int) -> int:
        """Return the size of the struct ``Shared``."""
        planes = 6 if itemsize == 4 else 2
        numbers = self.tokens * (2 * self.features + self.columns)
        tiles = numbers * (itemsize + planes)
        memory = self.features * self.columns * planes
        output = self.tokens * self.columns * itemsize
        decays = self.tokens * (24 + 2) + self.tokens // 16
        return tiles + memory + output + 4 * (self.features + decays + self.warps)


# By the bytes of a number and the features, the fastest first. A block of the first has
# many columns, which reads queries and keys less often; the last fits everywhere.
_CUTS = {
    2: {
        16: [(64, 64, 4)],
        32: [(64, 64, 4)],
        64: [(64, 64, 4)],
        128: [(64, 64, 8), (32, 64, 4)],
        256: [(32, 64, 8), (32, 32, 4)],
    },
    4: {
        16: [(32, 64, 4)],
        32: [(32, 64, 4)],
        64: [(64, 32, 4)],
        128: [(64, 32, 8), (32, 16, 4)],
        256: [(32, 16, 8)],
    },
}


def cut_of(of: Call, shared: int = SHARED) -> Cut | None:
    """Return how heads are cut for so much shared memory; None if they cannot be."""
    itemsize, features = of.query.dtype.itemsize, of.query.shape[-1]
    size = power(features)
    for columns, tokens, warps in _CUTS.get(itemsize, {}).get(size, []):
        cut = Cut(size, min(columns, power(of.value.shape[-1])), tokens, warps)
        if cut.shared(itemsize) <= shared:
            return cut
    return None


def fits(device: Device, of: Call, shared: int = SHARED) -> bool:
    """Whether the kernels can take a call.

    Its rows are copied 16 bytes at a time, and a row of features as one.
    """
    io = dtype_name(of.query.dtype)
    # An exponential leaves the range of float16 where that of float32 is far away.
    if io == "float64" or (io == "float16" and of.feature_map == "EXP"):
        return False
    arrays = (of.query, of.key, of.value)
    if 0 in (of.query.shape[-1], of.value.shape[-1]):
        return False
    return all(whole(device, x) for x in arrays) and cut_of(of, shared) is not None


def forward(
    device: Device,
    of: Call,
    output: Array,
    memory: Array,
    normalizer: Array | None,
    *,
    multiprocessors: int = 1,
    shared: int = SHARED,
) -> list[Launch]:
    """Plan the output and the state after the last token.

    Parameters
    ----------
    device : Device
        Gives what is in between its place.
    of : Call
        One that `fits`.
    output : array (B, H, T, V)
        In C order.
    memory, normalizer : array (B, H, K, V), (B, H, K) or None
        Where the state goes, in C order.
    multiprocessors : int
        Of the device: what blocks are to fill.
    shared : int
        Bytes of shared memory that a block may have.

    Returns
    -------
    list of Launch
        To be launched in this order.
    """
    cut = cut_of(of, shared)
    if cut is None:
        msg = f"no cut of rows of {of.query.shape[-1]} features fits {shared} bytes"
        raise ValueError(msg)
    tokens = of.query.shape[2]
    blocks = of.heads * -(-of.value.shape[-1] // cut.columns)
    segments, segment = _segments(tokens, cut.tokens, blocks, multiprocessors)
    if segments == 1:
        before, after = (of.memory, of.normalizer), (memory, normalizer)
        return [_walk(device, of, cut, output, before, after, None, 1, tokens)]
    launches, states = keep(device, of, cut, segments, segment, (memory, normalizer))
    none = (None, None)
    walk = _walk(device, of, cut, output, states, none, None, segments, segment)
    return [*launches, walk]


def keep(
    device: Device, of: Call, cut: Cut, segments: int, segment: int, after: State
) -> tuple[list[Launch], State]:
    """Plan the state before each segment, and that after the last one.

    Parameters
    ----------
    device : Device
        Gives what is in between its place.
    of : Call
        One that `fits`.
    cut : Cut
        Of it.
    segments, segment : int
        How many a head has, and of how many tokens: whole chunks.
    after : tuple of array (B, H, K, V) and (B, H, K) or None
        Where the last state goes, in C order; None where it is not asked for.

    Returns
    -------
    launches : list of Launch
        To be launched in this order.
    states : tuple of array (B H, segments, K, V) and (B H, segments, K) or None
        What they write.
    """
    heads, real = of.heads, np.dtype(np.float32)
    features, values = of.query.shape[-1], of.value.shape[-1]
    # What a segment adds; then what is before it.
    memories = device.empty((heads, segments, features, values), real)
    totals = None
    if of.normalize:
        totals = device.empty((heads, segments, features), real)
    left = device.empty((heads, segments), real)
    states, none = (memories, totals), (None, None)
    launches = [
        _walk(device, of, cut, None, none, states, left, segments, segment),
        carry(device, of, states, left, (of.memory, of.normalizer), after),
    ]
    return launches, states


def _walk(
    device: Device,
    of: Call,
    cut: Cut,
    output: Array | None,
    before: State,
    after: State,
    left: Array | None,
    segments: int,
    segment: int,
) -> Launch:
    flags = (of.log_decay is not None, of.normalize, output is not None)
    return Launch(
        file="walk",
        kernel=instance("walk", cut.of(of), of.feature_map, *flags),
        blocks=of.heads * segments * -(-of.value.shape[-1] // cut.columns),
        threads=32 * cut.warps,
        shared=cut.shared(of.query.dtype.itemsize),
        parameters=record(
            query=rows(device, of.query),
            key=rows(device, of.key),
            value=rows(device, of.value),
            log_decay=rows(device, of.query if of.log_decay is None else of.log_decay),
            output=rows(device, of.query if output is None else output),
            memory_before=address_or_null(device, before[0]),
            normalizer_before=address_or_null(device, before[1]),
            memory=address_or_null(device, after[0]),
            normalizer=address_or_null(device, after[1]),
            left=address_or_null(device, left),
            sizes=of.sizes,
            segments=np.int64(segments),
            segment=np.int64(segment),
            scale=np.float32(of.scale),
        ),
        holds=_present(*before, *after, left),
    )


def carry(
    device: Device,
    of: Call,
    states: State,
    left: Array,
    before: State,
    after: State,
    *,
    backwards: bool = False,
) -> Launch:
    """Plan to carry what segments add from each to the next one, or the one before.

    Parameters
    ----------
    device : Device
        Where the arrays are.
    of : Call
        Gives the sizes.
    states : tuple of array (B H, segments, K, V) and (B H, segments, K) or None
        What each adds, and then what comes into it.
    left : array (B H, segments)
        What each leaves of that.
    before, after : tuple of array (B, H, K, V) and (B, H, K) or None
        What comes into the first, None for zeros; where goes what leaves the last.
    backwards : bool
        Whether the first is the last in time.
    """
    heads, segments = left.shape
    features, values = of.query.shape[-1], of.value.shape[-1]
    entries = features * values, features if of.normalize else 0
    return Launch(
        file="carry",
        kernel="carry",
        blocks=-(-heads * sum(entries) // _CARRY_THREADS),
        threads=_CARRY_THREADS,
        shared=0,
        parameters=record(
            memory=address_or_null(device, states[0]),
            normalizer=address_or_null(device, states[1]),
            left=device.address(left),
            memory_before=address_or_null(device, before[0]),
            normalizer_before=address_or_null(device, before[1]),
            memory_after=address_or_null(device, after[0]),
            normalizer_after=address_or_null(device, after[1]),
            heads=np.int64(heads),
            segments=np.int64(segments),
            memory_entries=np.int64(entries[0]),
            normalizer_entries=np.int64(entries[1]),
            backwards=np.int64(backwards),
        ),
        holds=_present(*states, left, *before, *after),
    )


def _present(*arrays: Array | None) -> tuple[Array, ...]:
    return tuple(x for x in arrays if x is not None)


def _segments(
    tokens: int, chunk: int, blocks: int, multiprocessors: int
) -> tuple[int, int]:
    """Return how many segments a head has, and of how many tokens, all but the last."""
    chunks = -(-tokens // chunk)
    # Walking twice reads keys and values twice: not for a device that is half full.
    if 2 * blocks > multiprocessors or chunks < 2 * _FEWEST_CHUNKS:
        return 1, tokens
    wanted = min(2 * multiprocessors // blocks, chunks // _FEWEST_CHUNKS)
    each = -(-chunks // wanted)
    return -(-chunks // each), each * chunk


def whole(device: Device, x: Any) -> bool:
    """Whether each row begins at a multiple of 16 bytes and is one of them long."""
    strides = [s for s, n in zip(x.strides, x.shape, strict=True) if n > 1][:-1]
    steps: list[Any] = [device.address(x), x.shape[-1] * x.itemsize, *strides]
    return all(step % 16 == 0 for step in steps)


def power(of: int) -> int:
    """Return the smallest power of two from 16 on that is not less."""
    return max(16, 1 << (of - 1).bit_length())
