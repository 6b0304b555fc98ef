"""Planner of `state_passing.cu`: the scan of states over the segments of a head."""

import numpy as np

from linkern.kernels.cuda.launch import Array, Device, Launch
from linkern.kernels.cuda.layouts import (
    address_or_null,
    instance,
    present,
    record,
)
from linkern.kernels.cuda.plan.call import Call, State

__all__ = ["plan"]

# As in state_passing.cu; entries of a vector of 16 bytes.
_THREADS, _WIDTH = 128, 4


def plan(
    device: Device,
    call: Call,
    states: State,
    decay_total: Array,
    initial: State,
    final: State,
    *,
    reverse: bool = False,
) -> Launch:
    """Plan the scan that turns contributions of segments into states before segments.

    Parameters
    ----------
    device : Device
        Where the arrays are.
    call : Call
        Gives the sizes.
    states : tuple of array (B H, segments, K, V) and (B H, segments, K) or None
        Contribution of each segment; overwritten by the state before it.
    decay_total : array (B H, segments)
        Product of the decays of each segment.
    initial, final : tuple of array (B, H, K, V) and (B, H, K) or None
        State before the first segment, None for zeros; where the state after the last
        one goes.
    reverse : bool
        True if the scan runs from the last segment to the first.
    """
    heads, segments = decay_total.shape
    features, values = call.query.shape[-1], call.value.shape[-1]
    entries = features * values, features if call.normalize else 0
    arrays = present(*states, *initial, *final)
    aligned = all(device.address(x) % (4 * _WIDTH) == 0 for x in arrays)
    width = _WIDTH if aligned and not any(x % _WIDTH for x in entries) else 1
    blocks = -(-sum(entries) // (width * _THREADS))
    return Launch(
        file="state_passing",
        kernel=instance("state_passing", width),
        blocks=heads * blocks,
        threads=_THREADS,
        shared=0,
        parameters=record(
            state=address_or_null(device, states[0]),
            normalizer=address_or_null(device, states[1]),
            decay_total=device.address(decay_total),
            initial_state=address_or_null(device, initial[0]),
            initial_normalizer=address_or_null(device, initial[1]),
            final_state=address_or_null(device, final[0]),
            final_normalizer=address_or_null(device, final[1]),
            segments=np.int64(segments),
            state_entries=np.int64(entries[0]),
            normalizer_entries=np.int64(entries[1]),
            reverse=np.int64(reverse),
            blocks=np.int64(blocks),
        ),
        holds=(*arrays, decay_total),
    )
