"""The kernels on tensor cores for the way back of what is only added, as launches.

The memory before each segment is found as on the way there; then all heads go back.
"""

from typing import NamedTuple

import numpy as np

from linkern.array import dtype_name
from linkern.kernels.cuda.launch import Array, Device, Launch
from linkern.kernels.cuda.layouts import (
    address_or_null,
    instance,
    record,
    rows,
    rows_or_null,
)
from linkern.kernels.cuda.plan import chunk_fwd
from linkern.kernels.cuda.plan.chunk_fwd import Cut, State
from linkern.kernels.cuda.plan.chunk_fwd_simt import Call

__all__ = ["backward", "fits"]

# Chunks of a segment, at the beginning of which the memory is kept, at most; those of
# the tokens of a block, where heads are cut for want of others, at least.
_SEGMENT, _FEWEST = 16, 4
# Tokens of a chunk, the fastest first; the most features and values: a block has all.
_TOKENS, _WARPS, _WIDEST = (64, 32, 16), 8, 128
# How many numbers of 16 bits a number is multiplied as, and its name as such.
_PLANES = {
    "bfloat16": (1, "bf16"),
    "float16": (2, "f16_in_two"),
    "float32": (3, "float"),
}


def fits(device: Device, of: Call, cotangent: Array | None) -> bool:
    """Whether the kernels can take a call."""
    if cotangent is None or 0 in of.query.shape or not chunk_fwd.fits(device, of):
        return False
    return chunk_fwd.whole(device, cotangent) and _cut_of(of, device.shared) is not None


def _cut_of(of: Call, shared: int) -> Cut | None:
    """Return how heads are cut for so much shared memory; None if they cannot be."""
    features, values = (chunk_fwd.power(x.shape[-1]) for x in (of.query, of.value))
    for tokens in _TOKENS if max(features, values) <= _WIDEST else ():
        cut = Cut(features, values, tokens, _WARPS)
        if _shared(of, cut) <= shared:
            return cut
    return None


def backward(
    device: Device,
    of: Call,
    cotangent: Array,
    given: State,
    gradients: tuple[Array, Array, Array, Array | None],
) -> tuple[list[Launch], State]:
    """Plan all gradients.

    Parameters
    ----------
    device : Device
        Gives what is in between its place.
    of : Call
        One that `fits`, of at least one token.
    cotangent : array (B, H, T, V)
        Of the output, in its dtype.
    given : tuple of array (B, H, K, V) and (B, H, K) or None
        Cotangents of the state after the last token, in C order; None for zeros.
    gradients : tuple of array
        Where those of queries, keys, values and log-decays go, in C order.

    Returns
    -------
    launches : list of Launch
        To be launched in this order.
    outside : tuple of array (B H, K, V) and (B H, K) or None
        Where those of the state before the first token will be.
    """
    cut = _cut_of(of, device.shared)
    assert cut is not None
    parts = _parts(-(-of.query.shape[-2] // cut.tokens), of.heads, device)
    launches: list[Launch] = []
    kept: State = of.memory, of.normalizer
    if parts.segments > 1:
        there, segment = chunk_fwd.cut_of(of), parts.chunks * cut.tokens
        assert there is not None
        lengths = parts.segments, segment
        launches, kept = chunk_fwd.keep(device, of, there, *lengths, (None, None))
    lines = of.heads, parts.groups
    work = _Work(
        cotangent,
        gradients,
        kept,
        device.empty((*lines, parts.chunks, _snapshot(of, cut)), np.uint8),
        _behind(device, of, lines, given),
        device.empty(lines, np.float32),
    )
    if parts.groups > 1:
        launches += [
            _walk_back(device, of, cut, parts, work, pulls=False),
            chunk_fwd.carry(
                *(device, of, work.outside, work.left, given, (None, None)),
                backwards=True,
            ),
        ]
    launches.append(_walk_back(device, of, cut, parts, work, pulls=True))
    first = [None if x is None else x[:, 0] for x in work.outside]
    return launches, (first[0], first[1])


class _Parts(NamedTuple):
    """How the tokens of a head are parted.

    Parameters
    ----------
    chunks : int
        Of a segment, at the beginning of which the memory is kept.
    segments : int
        Of a head.
    group : int
        Segments of one block.
    groups : int
        Of a head.
    """

    chunks: int
    segments: int
    group: int
    groups: int


def _parts(chunks: int, heads: int, device: Device) -> _Parts:
    """Part a head of so many chunks: into groups, where heads are few."""
    few = 2 * heads <= device.multiprocessors
    wanted = device.multiprocessors // heads if few else 1
    each = max(-(-chunks // wanted), min(chunks, _FEWEST))
    segment = min(each, _SEGMENT)
    segments, group = -(-chunks // segment), -(-each // segment)
    return _Parts(segment, segments, group, -(-segments // group))


class _Work(NamedTuple):
    """The arrays of a way back, beside the inputs; see ``Backward`` in passing.cuh."""

    cotangent: Array
    gradients: tuple[Array, Array, Array, Array | None]
    kept: State
    inside: Array
    outside: State
    left: Array


def _behind(device: Device, of: Call, lines: tuple[int, int], given: State) -> State:
    """Return the states behind groups, of which the last are given."""
    found: list[Array | None] = []
    for like, x in zip((of.memory, of.normalizer), given, strict=True):
        if like is None:
            found.append(None)
            continue
        state = device.empty((*lines, *like.shape[2:]), like.dtype)
        last = state[:, -1]
        last[...] = 0 if x is None else x.reshape(last.shape)
        found.append(state)
    return found[0], found[1]


def _walk_back(
    device: Device, of: Call, cut: Cut, parts: _Parts, work: _Work, *, pulls: bool
) -> Launch:
    io = _PLANES[dtype_name(of.query.dtype)][1]
    flags = of.log_decay is not None, of.normalize
    names = ("query", "key", "value", "log_decay")
    gradients = dict(zip(names, work.gradients, strict=True))
    states = (*work.kept, *work.outside)
    return Launch(
        file="backward_walk",
        kernel=instance("walk_back", instance("Cut", io, *cut), of.feature_map, *flags),
        blocks=of.heads * parts.groups,
        threads=32 * cut.warps,
        shared=_shared(of, cut),
        parameters=record(
            query=rows(device, of.query),
            key=rows(device, of.key),
            value=rows(device, of.value),
            cotangent=rows(device, work.cotangent),
            log_decay=rows_or_null(device, of.log_decay),
            **{
                f"{name}_gradient": rows_or_null(device, gradients[name])
                for name in names
            },
            kept=address_or_null(device, work.kept[0]),
            kept_normalizer=address_or_null(device, work.kept[1]),
            inside=device.address(work.inside),
            outside=address_or_null(device, work.outside[0]),
            outside_normalizer=address_or_null(device, work.outside[1]),
            left=device.address(work.left),
            sizes=of.sizes,
            segments=np.int64(parts.segments),
            segment=np.int64(parts.chunks * cut.tokens),
            groups=np.int64(parts.groups),
            group=np.int64(parts.group),
            pulls=np.int64(pulls),
            scale=np.float32(of.scale),
        ),
        holds=(work.inside, work.left, *(x for x in states if x is not None)),
    )


def _snapshot(of: Call, cut: Cut) -> int:
    """Return the size of the struct ``Snapshot``."""
    planes, _ = _PLANES[dtype_name(of.query.dtype)]
    return 2 * planes * cut.features * cut.columns + 4 * cut.features


def _shared(of: Call, cut: Cut) -> int:
    """Return the size of the struct ``Tiles``."""
    planes, _ = _PLANES[dtype_name(of.query.dtype)]
    itemsize: int = of.query.dtype.itemsize
    # Queries, keys, values and cotangents: where they land, where they are multiplied.
    rows = 2 * cut.tokens * (cut.features + cut.columns)
    chunks = rows * (itemsize + 2 * planes)
    pairs = 2 * cut.tokens**2 * 2 * planes
    tiles = cut.tokens // 16
    parts = cut.warps // tiles
    sums = cut.tokens * (4 * parts + 2)
    decays = cut.tokens * (24 + 2) + tiles
    through = cut.tokens * (2 * tiles + 17 + 1 + parts) + cut.warps
    bytes_ = chunks + 2 * _snapshot(of, cut) + pairs + 4 * (sums + decays + through)
    return -(-bytes_ // 16) * 16
