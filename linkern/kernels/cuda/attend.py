"""Causal attention on a GPU: from arrays of any layout to an output and a state."""

from typing import Any

from linkern import feature_maps
from linkern.array import astype
from linkern.kernels.cuda.launch import Array, Device, Launch
from linkern.kernels.cuda.layouts import by_head, in_order
from linkern.kernels.cuda.plan import chunk_fwd, chunk_fwd_simt
from linkern.kernels.cuda.plan.chunk_fwd_simt import Call

__all__ = ["acts_on_entries", "attend", "call_of", "feature_map_name"]

# Feature maps by their names in common.cuh.
_MAPS: dict[Any, str] = {
    feature_maps.identity: "IDENTITY",
    feature_maps.elu_plus_one: "ELU_PLUS_ONE",
    feature_maps.relu: "RELU",
    feature_maps.exp: "EXP",
}


def acts_on_entries(feature_map: Any) -> bool:
    """Whether a feature map is one that kernels know."""
    # By identity: a callable need not be hashable.
    return any(feature_map is known for known in _MAPS)


def feature_map_name(feature_map: Any) -> str:
    """Return the name of a feature map in common.cuh; `ValueError` if it has none."""
    for known, name in _MAPS.items():
        if feature_map is known:
            return name
    names = ", ".join(known.__name__ for known in _MAPS)
    msg = (
        f"`feature_map` must be one of {names} on a GPU, got {feature_map!r}; apply it "
        "to query and key, and pass `feature_map=linkern.identity`."
    )
    raise ValueError(msg)


def attend(
    device: Device,
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None,
    memory: Array,
    normalizer: Array | None,
    *,
    feature_map: Any = feature_maps.identity,
    scale: float | None = None,
) -> tuple[Array, Array, Array | None]:
    """Return the output and the state after the last token.

    Parameters
    ----------
    device : Device
        Where the arrays are.
    query, key, value : array (..., T, K), (..., T, K), (..., T, V)
        With the same leading axes; any strides; one dtype.
    log_decay : array (..., T, 1) or None
        One for each token.
    memory, normalizer : array (..., K, V), (..., K) or None
        State before the first token, in the dtype of the computation. Without a
        normalizer, rows are not divided by their weights.
    feature_map : callable
        Applied to queries and keys; one of those that act on entries.
    scale : float, optional
        Factor on the output of rows that are not divided.

    Returns
    -------
    output : array (..., T, V)
        In the dtype of `query`.
    memory, normalizer : array
        New arrays.
    """
    of = call_of(query, key, value, log_decay, memory, normalizer, feature_map, scale)
    batch, heads, tokens, _ = of.query.shape
    features, values = memory.shape[-2:]
    output = device.empty((batch, heads, tokens, values), query.dtype)
    after = device.empty((batch, heads, features, values), memory.dtype)
    total = None
    if normalizer is not None:
        total = device.empty((batch, heads, features), memory.dtype)
    for launch in _plan(device, of, output, after, total) if of.heads else ():
        device.launch(launch)
    lead = query.shape[:-2]
    return (
        output.reshape(*lead, tokens, values),
        after.reshape(memory.shape),
        None
        if normalizer is None or total is None
        else total.reshape(normalizer.shape),
    )


def _plan(
    device: Device, of: Call, output: Array, memory: Array, normalizer: Array | None
) -> list[Launch]:
    """Plan on tensor cores where rows have the sizes for it, plainly elsewhere."""
    if chunk_fwd.fits(device, of, device.shared):
        return chunk_fwd.forward(
            *(device, of, output, memory, normalizer),
            multiprocessors=device.multiprocessors,
            shared=device.shared,
        )
    return [chunk_fwd_simt.forward(device, of, output, memory, normalizer)]


def call_of(
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None,
    memory: Array,
    normalizer: Array | None,
    feature_map: Any,
    scale: float | None,
) -> Call:
    """Return a call with two leading axes, and states in C order."""
    q, k, v = (by_head(x) for x in (query, key, value))
    heads = q.shape[:2]
    if any(x.shape[:2] != heads for x in (k, v)):
        msg = f"leading axes differ: {[x.shape[:-2] for x in (query, key, value)]}"
        raise ValueError(msg)
    return Call(
        q,
        k,
        v,
        None if log_decay is None else by_head(astype(log_decay, memory.dtype)),
        in_order(memory.reshape(*heads, *memory.shape[-2:])),
        None
        if normalizer is None
        else in_order(normalizer.reshape(*heads, normalizer.shape[-1])),
        feature_map=feature_map_name(feature_map),
        normalize=normalizer is not None,
        scale=1.0 if scale is None else scale,
    )
