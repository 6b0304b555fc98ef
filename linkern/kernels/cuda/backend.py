"""What kernels compute for whom: by terms, by rows, with or without gradients."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from linkern.autodiff.tape import joint, raw
from linkern.core.recurrence import Terms
from linkern.kernels.cuda import backward, forward
from linkern.kernels.cuda.launch import device_of
from linkern.typing import Array

__all__ = ["attend", "recurrence"]


def attend(*arrays: Any, **options: Any) -> tuple[Any, Any, Any]:
    """Call `kernels.cuda.forward.attend` on the device of the arrays, traced or not."""
    device = device_of(*arrays)
    if device is None:
        msg = "kernels need arrays of CuPy"
        raise TypeError(msg)

    def back(
        plain: Sequence[Any], varying: Sequence[int], cotangents: Mapping[int, Any]
    ) -> list[Any]:
        given = (cotangents.get(i) for i in range(3))
        found = backward.pullback(device, *plain, *given, **options)
        return [found[i] for i in varying]

    there = partial(forward.attend, device, **options)
    output, memory, normalizer = joint(there, back, arrays)
    return output, memory, normalizer


def recurrence(
    memory: Array, of: Terms, scale: float | None = None
) -> tuple[Array, Array] | None:
    """Return the read-out, scaled, and the memory after the last token.

    Queries, keys and values of terms that only add may be narrower than the memory.
    None for arrays of other libraries, and for what kernels do not take: memories that
    are read along the values, and gradients of anything but sums.
    """
    arrays = (memory, of.query, of.key, of.value, of.log_decay, of.erase)
    device = device_of(*arrays)
    if device is None:
        return None
    if of.is_additive:
        output, last, _ = attend(*arrays[1:5], memory, None, scale=scale)
        return output, last
    if of.transpose_state or any(raw(x) is not x for x in arrays):
        return None
    return forward.recurrent(device, memory, of)
