"""The kernels on tensor cores for the way back of what is only added, as launches.

The memory before each segment is found as on the way there; then all heads go back.
"""

import numpy as np

from linkern._array import dtype_name
from linkern._cuda import walk
from linkern._cuda.additive import Call
from linkern._cuda.device import Array, Device, Launch
from linkern._cuda.layouts import (
    address_or_null,
    instance,
    record,
    rows,
    rows_or_null,
)
from linkern._cuda.walk import Cut, State

__all__ = ["backward", "fits"]

# Chunks of a segment, at the beginning of which the memory is kept.
_SEGMENT = 16
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
    if cotangent is None or 0 in of.query.shape or not walk.fits(device, of):
        return False
    return walk.whole(device, cotangent) and _cut_of(of, device.shared) is not None


def _cut_of(of: Call, shared: int) -> Cut | None:
    """Return how heads are cut for so much shared memory; None if they cannot be."""
    features, values = (walk.power(x.shape[-1]) for x in (of.query, of.value))
    for tokens in _TOKENS if max(features, values) <= _WIDEST else ():
        cut = Cut(features, values, tokens, _WARPS)
        if _shared(of, cut) <= shared:
            return cut
    return None


def backward(
    device: Device,
    of: Call,
    cotangent: Array,
    gradients: tuple[Array, Array, Array, Array | None],
    outside: State,
) -> list[Launch]:
    """Plan all gradients.

    Parameters
    ----------
    device : Device
        Gives what is in between its place.
    of : Call
        One that `fits`, of at least one token.
    cotangent : array (B, H, T, V)
        Of the output, in its dtype.
    gradients : tuple of array
        Where those of queries, keys, values and log-decays go, in C order.
    outside : tuple of array (B, H, K, V) and (B, H, K) or None
        Cotangents of the state after the last token, in C order, where those of the
        state before the first one go.

    Returns
    -------
    list of Launch
        To be launched in this order.
    """
    cut = _cut_of(of, device.shared)
    assert cut is not None
    tokens = of.query.shape[-2]
    chunks = min(-(-tokens // cut.tokens), _SEGMENT)
    segment = chunks * cut.tokens
    segments = -(-tokens // segment)
    launches: list[Launch] = []
    kept: State = of.memory, of.normalizer
    if segments > 1:
        there = walk.cut_of(of)
        assert there is not None
        launches, kept = walk.keep(device, of, there, segments, segment, (None, None))
    inside = device.empty((of.heads, chunks, _snapshot(of, cut)), np.uint8)
    names = ("query", "key", "value", "log_decay")
    back = Launch(
        file="backward_walk",
        kernel=instance(
            "walk_back",
            instance("Cut", _PLANES[dtype_name(of.query.dtype)][1], *cut),
            of.feature_map,
            of.log_decay is not None,
            of.normalize,
        ),
        blocks=of.heads,
        threads=32 * cut.warps,
        shared=_shared(of, cut),
        parameters=record(
            query=rows(device, of.query),
            key=rows(device, of.key),
            value=rows(device, of.value),
            cotangent=rows(device, cotangent),
            log_decay=rows_or_null(device, of.log_decay),
            **{
                f"{name}_gradient": rows_or_null(device, x)
                for name, x in zip(names, gradients, strict=True)
            },
            kept=address_or_null(device, kept[0]),
            kept_normalizer=address_or_null(device, kept[1]),
            inside=device.address(inside),
            outside=address_or_null(device, outside[0]),
            outside_normalizer=address_or_null(device, outside[1]),
            sizes=of.sizes,
            segments=np.int64(segments),
            segment=np.int64(segment),
            scale=np.float32(of.scale),
        ),
        holds=tuple(x for x in (*kept, inside, *outside) if x is not None),
    )
    return [*launches, back]


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
