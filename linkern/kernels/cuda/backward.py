"""Gradients of causal attention and of the delta rules on a GPU."""

from typing import Any

from linkern import feature_maps
from linkern.array import astype
from linkern.core.recurrence import Terms
from linkern.kernels.cuda.forward import call_of, recurrent_call
from linkern.kernels.cuda.launch import Array, Device
from linkern.kernels.cuda.layouts import by_head, in_order
from linkern.kernels.cuda.plan import chunk_bwd, chunk_bwd_simt, chunk_delta_bwd
from linkern.kernels.cuda.plan.chunk_delta_bwd import DeltaGradients
from linkern.kernels.numpy.backward import Gradients

__all__ = ["differentiates", "pullback", "recurrent_pullback"]


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


def differentiates(device: Device, memory: Array, terms: Terms) -> bool:
    """Return True if there are kernels for the gradients of a recurrence."""
    _, laid_out, initial = recurrent_call(memory, terms)
    return bool(initial.size) and chunk_delta_bwd.fits(device, laid_out, initial)


def recurrent_pullback(
    device: Device,
    memory: Array,
    terms: Terms,
    output_cotangent: Array | None,
    memory_cotangent: Array | None,
    *,
    scale: float = 1.0,
) -> tuple[Array, dict[str, Array]]:
    """Return the gradients of the inputs of `linkern.kernels.cuda.forward.recurrent`.

    Parameters
    ----------
    device : Device
        Where the arrays are.
    memory, terms
        The inputs, with the same leading axes, for which `differentiates` is True.
    output_cotangent : array (..., T, V) or None
        Gradient of the output, in its dtype; None for zero, as the next one.
    memory_cotangent : array (..., K, V) or None
        Gradient of the memory after the last token.
    scale : float
        Factor on the read-out.

    Returns
    -------
    memory : array (..., K, V)
        Gradient of the memory before the first token.
    terms : dict of str to array
        Gradients of the arrays of the terms, in their shapes and dtypes; those of keys
        hold what erases add.
    """
    _, laid_out, initial = recurrent_call(memory, terms)
    like = laid_out.value
    if output_cotangent is None:
        output_grad = device.empty(like.shape, like.dtype)
        output_grad[...] = 0
    else:
        output_grad = by_head(astype(output_cotangent, like.dtype))
    final_grad = None
    if memory_cotangent is not None:
        final_grad = in_order(astype(memory_cotangent, initial.dtype))

    def gate_grad(gate: Array | None) -> Array | None:
        return None if gate is None else device.empty(gate.shape, initial.dtype)

    gradients = DeltaGradients(
        *(device.empty(x.shape, like.dtype) for x in laid_out[:3]),
        *map(gate_grad, (laid_out.log_decay, laid_out.beta)),
    )
    launches, initial_grad = chunk_delta_bwd.plan(
        *(device, laid_out, initial, output_grad, final_grad, gradients), scale=scale
    )
    for launch in launches:
        device.launch(launch)
    by_name = {
        name: _like(x, getattr(terms, name)) for name, x in gradients._asdict().items()
    }
    return _like(initial_grad, memory), by_name


def _like(gradient: Array, like: Array) -> Array:
    """Return a gradient in the shape and dtype of an input; None for None."""
    return None if like is None else astype(gradient.reshape(like.shape), like.dtype)
