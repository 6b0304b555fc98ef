"""Planner of `recurrent.cu` and `recurrent_global.cu`: one token after another."""

from typing import Any

import numpy as np

from linkern.array import dtype_name
from linkern.core.recurrence import Terms
from linkern.kernels.cuda.launch import Array, Device, Launch
from linkern.kernels.cuda.layouts import (
    IO,
    address_or_null,
    gates,
    instance,
    real_of,
    record,
    rows,
    rows_or_null,
    sizes,
)

__all__ = ["parameters", "plan"]

# As in recurrent.cu.
_SPAN, _LANES, _THREADS = 4, 16, 128
_FEATURES = (32, 64, 128, 256)
_REGISTER_BYTES = 1024  # largest column of a state that fits into registers
# As in recurrent_global.cu.
_GLOBAL_THREADS, _GLOBAL_COLUMNS = 256, 32


def plan(
    device: Device,
    terms: Terms,
    initial: Array | None,
    output: Array,
    final: Array,
    *,
    scale: float = 1.0,
) -> Launch:
    """Plan the launch for terms of ``(batch, heads, T, D)``, all of one dtype.

    Parameters
    ----------
    device : Device
        Where the arrays are.
    terms : Terms
        Rows as `kernels.cuda.layouts.by_head` returns them; log-decays and beta may
        also be in the dtype of the memory.
    initial, final : array (..., K, V)
        Memories before the first and after the last token, in C order; None for
        zeros. They may be the same array.
    output : array (B, H, T, V)
        Read-out of the queries, in their dtype; written.
    scale : float
        Factor on the read-out.
    """
    _, heads, _, features = terms.query.shape
    values, real = terms.value.shape[-1], real_of(terms.query)
    if final.dtype == np.float64:
        real = "double"
    itemsize = final.dtype.itemsize
    vector = 16 // itemsize
    fitting = (n for n in _FEATURES if features <= n <= _REGISTER_BYTES // itemsize)
    padded = next(fitting, None)
    columns = _GLOBAL_COLUMNS if padded is None else _THREADS // _LANES * vector
    arguments: list[object] = [IO[dtype_name(terms.query.dtype)], real, *_kinds(terms)]
    if padded is not None:
        whole = padded == features
        arguments = [*arguments[:2], str(padded), *arguments[2:], whole]
    kernel = "recurrent_global" if padded is None else "recurrent"
    return Launch(
        file=kernel,
        kernel=instance(kernel, *arguments),
        blocks=terms.query.shape[0] * heads * max(1, -(-values // columns)),
        threads=_GLOBAL_THREADS if padded is None else _THREADS,
        shared=_shared_entries(terms, padded, columns) * itemsize,
        parameters=parameters(device, terms, initial, output, final, scale=scale),
    )


def parameters(
    device: Device,
    terms: Terms,
    initial: Array | None,
    output: Array,
    final: Array,
    *,
    scale: float,
) -> Any:
    """Return the struct ``RecurrentParams`` of recurrent.cuh."""
    _, heads, tokens, features = terms.query.shape
    values, vector = terms.value.shape[-1], 16 // final.dtype.itemsize
    addresses = [device.address(x) for x in (initial, final) if x is not None]
    return record(
        query=rows(device, terms.query),
        key=rows(device, terms.key),
        value=rows(device, terms.value),
        erase=rows_or_null(device, terms.erase),
        log_decay=gates(device, terms.log_decay, final.dtype),
        beta=gates(device, terms.beta, final.dtype),
        output=rows(device, output),
        initial_state=address_or_null(device, initial),
        final_state=device.address(final),
        broken=0,
        sizes=sizes(heads, tokens, features, values),
        scale=np.asarray(scale, final.dtype),
        vectors=np.bool_(values % vector == 0 and not any(x % 16 for x in addresses)),
    )


def _kinds(terms: Terms) -> list[str]:
    """Return how terms decay, erase and read, by the names in recurrent.cuh."""
    decay, erase = "NO_DECAY", "NO_ERASE"
    if terms.log_decay is not None:
        decay = "BY_TOKEN" if terms.log_decay.shape[-1] == 1 else "BY_FEATURE"
    if terms.erase is not None:
        erase = "ERASE_EARLY" if terms.early_erase else "ERASE"
    return [decay, erase, "READ_EARLY" if terms.early_read else "READ"]


def _shared_entries(terms: Terms, padded: int | None, columns: int) -> int:
    """Return the number of entries of two ``Span``, or of ``PartialSums``."""
    if padded is None:
        return 2 * _GLOBAL_THREADS
    decays = padded if "BY_FEATURE" in _kinds(terms) else 1
    return 2 * _SPAN * (3 * padded + decays + columns + 1)
