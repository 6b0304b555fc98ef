"""Gradients of causal attention on a GPU."""

from typing import Any

from linkern import feature_maps
from linkern.array import astype
from linkern.kernels.cuda.forward import call_of
from linkern.kernels.cuda.launch import Array, Device
from linkern.kernels.cuda.layouts import by_head
from linkern.kernels.cuda.plan import chunk_bwd, chunk_bwd_simt
from linkern.kernels.numpy.backward import Gradients

__all__ = ["pullback"]


def pullback(
    device: Device,
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None,
    memory: Array,
    normalizer: Array | None,
    output_cotangent: Array | None,
    memory_cotangent: Array | None,
    normalizer_cotangent: Array | None,
    *,
    feature_map: Any = feature_maps.identity,
    scale: float | None = None,
) -> Gradients:
    """Return the gradients of the inputs of `linkern.kernels.cuda.forward.attend`.

    Parameters
    ----------
    device : Device
        Where the arrays are.
    query, key, value, log_decay, memory, normalizer
        The inputs.
    output_cotangent : array (..., T, V) or None
        Gradient of the output, in its dtype; None for zero, as the others.
    memory_cotangent, normalizer_cotangent : array (..., K, V), (..., K) or None
        Gradients of the state after the last token.
    feature_map, scale
        The options.

    Returns
    -------
    Gradients
        New arrays; those of the state may be parts of one.
    """
    wide_decay = None if log_decay is None else astype(log_decay, memory.dtype)
    inputs = (query, key, value, log_decay, memory, normalizer)
    call = call_of(
        query, key, value, wide_decay, memory, normalizer, feature_map, scale
    )
    output_grad = None
    if output_cotangent is not None:
        output_grad = by_head(astype(output_cotangent, query.dtype))
    rows = call.query, call.key, call.value
    q, k, v = (device.empty(x.shape, x.dtype) for x in rows)
    g = call.log_decay
    gradients = q, k, v, None if g is None else device.empty(g.shape, g.dtype)
    on_tensor_cores = chunk_bwd.fits(device, call, output_grad)
    planner = chunk_bwd.plan if on_tensor_cores else chunk_bwd_simt.plan
    state_grads = memory_cotangent, normalizer_cotangent
    launches, initial = planner(device, call, output_grad, state_grads, gradients)
    for launch in launches:
        device.launch(launch)
    return Gradients(*map(_like, (*gradients, *initial), inputs))


def _like(gradient: Array, like: Array) -> Array:
    """Return a gradient in the shape and dtype of an input; None for None."""
    return None if like is None else astype(gradient.reshape(like.shape), like.dtype)
