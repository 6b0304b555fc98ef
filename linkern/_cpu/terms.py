"""What is computed in place, for those who ask: with gradients, by terms or by rows."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from linkern._array import on_numpy
from linkern._cpu import backward, forward
from linkern._recurrence import Terms
from linkern._tape import joint
from linkern._typing import Array

__all__ = ["attend", "chunkwise", "takes"]


def attend(*arrays: Any, **options: Any) -> tuple[Any, Any, Any]:
    """Call `linkern._cpu.forward.attend`; the arrays may be traced."""

    def back(
        plain: Sequence[Any], varying: Sequence[int], cotangents: Mapping[int, Any]
    ) -> list[Any]:
        given = (cotangents.get(i) for i in range(3))
        found = backward.pullback(*plain, *given, **options)
        return [found[i] for i in varying]

    output, memory, normalizer = joint(partial(forward.attend, **options), back, arrays)
    return output, memory, normalizer


def takes(memory: Array, of: Terms) -> bool:
    """Whether these are arrays of NumPy, and terms that are computed here."""
    if not on_numpy(memory, of.query, of.key, of.value, of.log_decay):
        return False
    by_token = of.log_decay is None or of.log_decay.shape[-1] == 1
    return by_token and of.erase is None and not (of.early_read or of.crosswise)


def chunkwise(memory: Array, of: Terms, size: int) -> tuple[Array, Array]:
    """Return the read-out and the memory after the last token, in chunks of `size`."""
    rows = of.query, of.key, of.value, of.log_decay
    output, memory, _ = attend(*rows, memory, None, size=size)
    return output, memory
