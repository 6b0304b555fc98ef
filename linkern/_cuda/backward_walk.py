"""The kernels on tensor cores for the way back of what is only added, as launches.

The memory before each segment is found as on the way there; then all heads go back.
"""

import numpy as np

from linkern._array import dtype_name
from linkern._cuda import walk
from linkern._cuda.additive import Call
from linkern._cuda.device import Array, Device, Launch
from linkern._cuda.layouts import address_or_null, instance, record, rows
from linkern._cuda.walk import Cut, State

__all__ = ["backward", "fits"]

# Tokens of a chunk, each 16 of which have a warp; chunks of a segment, in which what
# was added is subtracted again; the most features and values: a block has all.
_TOKENS, _SEGMENT, _WIDEST = 64, 16, 64


def fits(device: Device, of: Call, cotangent: Array | None) -> bool:
    """Whether the kernels can take a call."""
    # 1 / weights and memories leave the range of float16, where other rows do not.
    if dtype_name(of.query.dtype) != "bfloat16" or of.log_decay is not None:
        return False
    if cotangent is None or 0 in of.query.shape:
        return False
    if max(of.query.shape[-1], of.value.shape[-1]) > _WIDEST:
        return False
    return walk.whole(device, cotangent) and walk.fits(device, of)


def backward(
    device: Device,
    of: Call,
    cotangent: Array,
    given: State,
    gradients: tuple[Array, Array, Array],
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
    given : tuple of array (B, H, K, V) and (B, H, K) or None
        Cotangents of the state after the last token, in C order; None for zeros.
    gradients : tuple of array
        Where those of queries, keys and values go.
    outside : tuple of array (B, H, K, V) and (B, H, K) or None
        Where those of the state before the first token go, in C order.

    Returns
    -------
    list of Launch
        To be launched in this order.
    """
    features, values = of.query.shape[-1], of.value.shape[-1]
    tokens, segment = of.query.shape[-2], _TOKENS * _SEGMENT
    segments = -(-tokens // segment)
    last = tuple(None if x is None else device.empty(x.shape, x.dtype) for x in outside)
    there = walk.cut_of(of)
    assert there is not None
    launches, kept = walk.keep(device, of, there, segments, segment, (last[0], last[1]))
    cut = Cut(walk.power(features), walk.power(values), _TOKENS, _TOKENS // 16)
    parts = {"kept": kept, "last": last, "given": given, "outside": outside}
    states = {
        name + end: address_or_null(device, x)
        for name, state in parts.items()
        for end, x in zip(("", "_normalizer"), state, strict=True)
    }
    named = zip(("query", "key", "value"), gradients, strict=True)
    back = Launch(
        file="backward_walk",
        kernel=instance("walk_back", cut.of(of), of.feature_map, of.normalize),
        blocks=of.heads,
        threads=32 * cut.warps,
        shared=_shared(cut),
        parameters=record(
            query=rows(device, of.query),
            key=rows(device, of.key),
            value=rows(device, of.value),
            cotangent=rows(device, cotangent),
            **{f"{name}_gradient": rows(device, x) for name, x in named},
            **states,
            sizes=of.sizes,
            segments=np.int64(segments),
            segment=np.int64(segment),
            scale=np.float32(of.scale),
        ),
        holds=tuple(x for state in parts.values() for x in state if x is not None),
    )
    return [*launches, back]


def _shared(cut: Cut) -> int:
    """Return the size of the struct ``Tiles``."""
    # In 16 bits: two chunks of queries, keys, values and cotangents; S and R; pairs and
    # their cotangents.
    chunks = 2 * cut.tokens * (2 * cut.features + 2 * cut.columns)
    narrow = chunks + 2 * cut.features * cut.columns + 2 * cut.tokens**2
    return 2 * narrow + 4 * (2 * cut.features + 2 * cut.tokens)
