"""Forward calls on a GPU: from arrays of any layout to an output and a state."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from linkern import feature_maps, validate
from linkern.array import (
    astype,
    broadcast_shapes,
    broadcast_to,
    dtype_name,
    is_captured,
)
from linkern.core.recurrence import Terms
from linkern.kernels.cuda.launch import Array, Device, Launch
from linkern.kernels.cuda.layouts import by_head, in_order, real_of
from linkern.kernels.cuda.plan import (
    chunk_delta,
    chunk_fwd,
    chunk_fwd_simt,
    chunk_gla,
)
from linkern.kernels.cuda.plan import recurrent as recurrent_planner
from linkern.kernels.cuda.plan.call import Call

__all__ = [
    "acts_on_entries",
    "attend",
    "call_of",
    "feature_map_name",
    "recurrent",
    "recurrent_call",
]

# Feature maps by their names in common.cuh.
_MAPS: dict[Any, str] = {
    feature_maps.identity: "IDENTITY",
    feature_maps.elu_plus_one: "ELU_PLUS_ONE",
    feature_maps.relu: "RELU",
    feature_maps.exp: "EXP",
}

# Planners of the recurrence that take some terms; each of these fits one at most.
_BY_CHUNKS = (chunk_delta, chunk_gla)


def acts_on_entries(feature_map: Any) -> bool:
    """Return True if kernels have a feature map: one that acts on each entry alone."""
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
    check_gates: bool = False,
) -> tuple[Array, Array, Array | None]:
    """Return the output of causal attention and the state after the last token.

    Parameters
    ----------
    device : Device
        Where the arrays are.
    query, key, value : array (..., T, K), (..., T, K), (..., T, V)
        With the same leading axes; any strides; one dtype.
    log_decay : array (..., T, 1) or None
        One for each token, of the dtype of the rows or of the state.
    memory, normalizer : array (..., K, V), (..., K) or None
        State before the first token, in the dtype of the computation. Without a
        normalizer, rows are not divided by their weights.
    feature_map : callable
        Applied to queries and keys; one of those that act on entries.
    scale : float, optional
        Factor on the output of rows that are not divided.
    check_gates : bool
        Whether the kernel looks for positive log-decays; then the call waits for it.
        Not while the stream records a graph, which nothing can wait for.

    Returns
    -------
    output : array (..., T, V)
        In the dtype of `query`.
    memory, normalizer : array
        New arrays.

    Raises
    ------
    ValueError
        If leading axes differ, or a log-decay that is checked is positive.
    """
    call = call_of(query, key, value, log_decay, memory, normalizer, feature_map, scale)
    batch, heads, tokens, _ = call.query.shape
    features, values = memory.shape[-2:]
    output = device.empty((batch, heads, tokens, values), query.dtype)
    last = device.empty((batch, heads, features, values), memory.dtype)
    last_normalizer = None
    if normalizer is not None:
        last_normalizer = device.empty((batch, heads, features), memory.dtype)
    if call.heads:
        launches = _plan(device, call, output, last, last_normalizer)
        _run(device, launches, check_gates=check_gates and _known(log_decay))
    output = output.reshape(*query.shape[:-1], values)
    if normalizer is None or last_normalizer is None:
        return output, last.reshape(memory.shape), None
    normalizer = last_normalizer.reshape(normalizer.shape)
    return output, last.reshape(memory.shape), normalizer


def _plan(
    device: Device, call: Call, output: Array, memory: Array, normalizer: Array | None
) -> list[Launch]:
    """Plan on tensor cores if sizes and layouts allow it."""
    if chunk_fwd.fits(device, call, device.shared):
        return chunk_fwd.plan(
            *(device, call, output, memory, normalizer),
            multiprocessors=device.multiprocessors,
            shared=device.shared,
        )
    return [chunk_fwd_simt.plan(device, call, output, memory, normalizer)]


def _run(device: Device, launches: Sequence[Launch], *, check_gates: bool) -> None:
    """Run launches, of which the first one reads all gates and reports on them."""
    reports = None
    if check_gates:
        first = launches[0]
        reports = device.empty((first.blocks * first.threads // 32,), np.uint32)
        first.parameters["broken"] = device.address(reports)
    for launch in launches:
        device.launch(launch)
    if reports is not None:
        broken = np.bitwise_or.reduce(device.on_host(reports))
        # As in common.cuh.
        if broken & 1:
            validate.refuse_positive("log_decay")
        if broken & 2:
            validate.refuse_outside("beta", *validate.BETA)


def _known(*gates: Array | None) -> bool:
    """Return True if there are gates, and a call can wait for a look at them."""
    return any(x is not None and not is_captured(x) for x in gates)


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
        None if log_decay is None else by_head(_gate(log_decay, query, memory)),
        in_order(memory.reshape(*heads, *memory.shape[-2:])),
        None
        if normalizer is None
        else in_order(normalizer.reshape(*heads, normalizer.shape[-1])),
        feature_map=feature_map_name(feature_map),
        normalize=normalizer is not None,
        scale=1.0 if scale is None else scale,
    )


def _gate(x: Array, row: Array, memory: Array) -> Array:
    """Return gates in a dtype that kernels read: that of the rows or of the memory."""
    return x if x.dtype == row.dtype else astype(x, memory.dtype)


def recurrent(
    device: Device,
    memory: Array,
    terms: Terms,
    *,
    scale: float = 1.0,
    check_gates: bool = False,
) -> tuple[Array, Array]:
    """Return the read-out of the queries and the memory after the last token.

    Parameters
    ----------
    device : Device
        Where the arrays are.
    memory : array (..., K, V)
        Before the first token, in the dtype of the computation: float32 or float64.
    terms : Terms
        With leading axes that broadcast; any strides. Rows of several dtypes are all
        widened to that of the memory; log-decays and beta may have either.
    scale : float
        Factor on the read-out.
    check_gates : bool
        As for `attend`, and whether it looks for a beta outside of its range.

    Returns
    -------
    output : array (..., T, V)
        In the dtype of the query.
    memory : array (..., K, V)
        A new array.

    Raises
    ------
    ValueError
        If the memory is to be read along the values, or a gate that is checked is out
        of its range.
    """
    if terms.transpose_state:
        msg = (
            "`transpose_state` terms have no kernel; transpose the memory and the "
            "terms."
        )
        raise ValueError(msg)
    dtype = terms.query.dtype
    lead, laid_out, initial = recurrent_call(memory, terms)
    final = device.empty(initial.shape, initial.dtype)
    batch, heads, tokens, _ = laid_out.query.shape
    shape = (batch, heads, tokens, initial.shape[-1])
    output = device.empty(shape, laid_out.query.dtype)
    if batch * heads:
        by_chunks = (x for x in _BY_CHUNKS if x.fits(device, laid_out, initial))
        planner = next(by_chunks, recurrent_planner)
        launch = planner.plan(device, laid_out, initial, output, final, scale=scale)
        gated = _known(laid_out.log_decay, laid_out.beta)
        _run(device, [launch], check_gates=check_gates and gated)
    return astype(output.reshape(*lead, *output.shape[-2:]), dtype), final


def recurrent_call(memory: Array, terms: Terms) -> tuple[tuple[int, ...], Terms, Array]:
    """Return leading axes; terms with two of them, in dtypes of kernels; the memory."""
    lead = broadcast_shapes(*(x.shape[:-2] for x in (memory, *terms.arrays())))
    rows = (terms.query, terms.key, terms.value, terms.erase)
    dtypes = {dtype_name(x.dtype) for x in rows if x is not None}
    wide = memory.dtype
    same = len(dtypes) == 1 and real_of(terms.query) == real_of(memory)
    dtype = terms.query.dtype if same else wide

    def laid_out(x: Array) -> Array:
        x = x if x.dtype == dtype else astype(x, wide)
        return by_head(broadcast_to(x, (*lead, *x.shape[-2:])))

    start: Array = broadcast_to(memory, (*lead, *memory.shape[-2:]))
    return lead, terms.mapped(laid_out), in_order(start)
