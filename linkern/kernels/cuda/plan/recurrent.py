"""The recurrence token by token on a GPU: for every operator that is data for it."""

import numpy as np

from linkern.array import astype, broadcast_shapes, broadcast_to, dtype_name
from linkern.core.recurrence import Terms
from linkern.kernels.cuda.launch import Array, Device, Launch
from linkern.kernels.cuda.layouts import (
    IO,
    address_or_null,
    by_head,
    in_order,
    instance,
    real_of,
    record,
    rows,
    rows_or_null,
    sizes,
)

__all__ = ["plan", "recurrent"]

# As in token.cu.
_SPAN, _LANES, _THREADS = 4, 16, 128
_FEATURES = (32, 64, 128, 256)
_HELD_BYTES = 1024  # of a column: more do not fit into registers
# As in token_plain.cu.
_PLAIN_THREADS, _PLAIN_COLUMNS = 256, 32


def recurrent(device: Device, memory: Array, of: Terms) -> tuple[Array, Array]:
    """Return what the queries read and the memory after the last token.

    Parameters
    ----------
    device : Device
        Where the arrays are.
    memory : array (..., K, V)
        Before the first token, in the dtype of the computation: float32 or float64.
    of : Terms
        With leading axes that broadcast; any strides. Terms of several dtypes are all
        widened to that of the memory.

    Returns
    -------
    read_out : array (..., T, V)
        In the dtype of the query.
    memory : array (..., K, V)
        A new array.

    Raises
    ------
    ValueError
        If the terms read along the values.
    """
    if of.transpose_state:
        msg = "no kernel takes `transpose_state`; transpose memory and terms."
        raise ValueError(msg)
    arrays = (memory, of.query, of.key, of.value, of.log_decay, of.erase)
    lead = broadcast_shapes(*(x.shape[:-2] for x in arrays if x is not None))
    dtype = of.query.dtype
    laid = _laid(memory, of, lead)
    start: Array = broadcast_to(memory, (*lead, *memory.shape[-2:]))
    before = in_order(start)
    after = device.empty(before.shape, before.dtype)
    batch, heads, tokens, _ = laid.query.shape
    output = device.empty((batch, heads, tokens, before.shape[-1]), laid.query.dtype)
    if batch * heads:
        device.launch(plan(device, laid, before, output, after))
    return astype(output.reshape(*lead, *output.shape[-2:]), dtype), after


def plan(
    device: Device, of: Terms, before: Array | None, output: Array, after: Array
) -> Launch:
    """Plan the launch for terms of ``(batch, heads, T, D)``, all of one dtype.

    Parameters
    ----------
    device : Device
        Where the arrays are.
    of : Terms
        Rows as `kernels.cuda.layouts.by_head` returns them; the log-decays in the
        dtype of the memory.
    before, after : array (..., K, V)
        Memories in C order; None for zeros. They may be the same array.
    output : array (B, H, T, V)
        What the queries read, in their dtype.
    """
    _, heads, tokens, features = of.query.shape
    values, real = of.value.shape[-1], real_of(of.query)
    if after.dtype == np.float64:
        real = "double"
    itemsize = after.dtype.itemsize
    wide = 16 // itemsize
    fitting = (n for n in _FEATURES if features <= n <= _HELD_BYTES // itemsize)
    held = next(fitting, None)
    columns = _PLAIN_COLUMNS if held is None else _THREADS // _LANES * wide
    places = [device.address(x) for x in (before, after) if x is not None]
    flags: list[object] = [IO[dtype_name(of.query.dtype)], real, *_flags(of)]
    if held is not None:
        flags = [*flags[:2], str(held), *flags[2:], held == features]
    return Launch(
        file="token_plain" if held is None else "token",
        kernel=instance("token_by_token", *flags),
        blocks=of.query.shape[0] * heads * max(1, -(-values // columns)),
        threads=_PLAIN_THREADS if held is None else _THREADS,
        shared=_shared(of, held, columns) * itemsize,
        parameters=record(
            query=rows(device, of.query),
            key=rows(device, of.key),
            value=rows(device, of.value),
            erase=rows_or_null(device, of.erase),
            log_decay=rows_or_null(device, of.log_decay),
            output=rows(device, output),
            memory_before=address_or_null(device, before),
            memory=device.address(after),
            sizes=sizes(heads, tokens, features, values),
            vectors=np.bool_(values % wide == 0 and not any(x % 16 for x in places)),
        ),
    )


def _laid(memory: Array, of: Terms, lead: tuple[int, ...]) -> Terms:
    """Return terms with two leading axes, in one dtype that kernels compute with."""
    arrays = (of.query, of.key, of.value, of.erase)
    dtypes = {dtype_name(x.dtype) for x in arrays if x is not None}
    narrow = len(dtypes) == 1 and real_of(of.query) == real_of(memory)
    dtype = of.query.dtype if narrow else memory.dtype

    def laid(x: Array, dtype: object) -> Array:
        x = astype(x, dtype)
        return by_head(broadcast_to(x, (*lead, *x.shape[-2:])))

    found = of.mapped(lambda x: laid(x, dtype))
    if of.log_decay is None:
        return found
    return found._replace(log_decay=laid(of.log_decay, memory.dtype))


def _flags(of: Terms) -> list[str]:
    """Return what the recurrence does, by the names in token.cuh."""
    decay, erase = "NO_DECAY", "NO_ERASE"
    if of.log_decay is not None:
        decay = "BY_TOKEN" if of.log_decay.shape[-1] == 1 else "BY_FEATURE"
    if of.erase is not None:
        erase = "ERASE_EARLY" if of.early_erase else "ERASE"
    return [decay, erase, "READ_EARLY" if of.early_read else "READ"]


def _shared(of: Terms, held: int | None, columns: int) -> int:
    """Return how many numbers the structs ``Span`` or ``Parts`` have."""
    if held is None:
        return 2 * _PLAIN_THREADS
    decays = held if "BY_FEATURE" in _flags(of) else 1
    return 2 * _SPAN * (3 * held + decays + columns)
