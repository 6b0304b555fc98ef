"""What is computed in place, for those who ask: with gradients, by terms or by rows."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from linkern.array import on_numpy
from linkern.autodiff.tape import joint, raw
from linkern.core.recurrence import Terms
from linkern.feature_maps import identity
from linkern.kernels.numpy import backward, forward
from linkern.kernels.numpy.chunkwise import chunks
from linkern.kernels.numpy.features import in_place
from linkern.kernels.numpy.recurrent import recurrent as token_by_token
from linkern.typing import Array

__all__ = ["attend", "chunkwise", "recurrent"]


def attend(
    *arrays: Any, feature_map: Any = identity, **given: Any
) -> tuple[Any, Any, Any]:
    """Call `linkern.kernels.numpy.forward.attend`; the arrays may be traced."""
    options = {"feature_map": in_place(feature_map), **given}

    def back(
        plain: Sequence[Any], varying: Sequence[int], cotangents: Mapping[int, Any]
    ) -> list[Any]:
        given = (cotangents.get(i) for i in range(3))
        found = backward.pullback(*plain, *given, **options)
        return [found[i] for i in varying]

    output, memory, normalizer = joint(partial(forward.attend, **options), back, arrays)
    return output, memory, normalizer


def chunkwise(memory: Array, of: Terms, size: int) -> tuple[Array, Array] | None:
    """Return the read-out and the memory after the last token, in chunks of `size`.

    None for arrays of other libraries, and for gradients that have no closed form here.
    """
    arrays = (memory, of.query, of.key, of.value, of.log_decay, of.erase)
    if not on_numpy(*arrays):
        return None
    if of.is_additive:
        output, last, _ = attend(*arrays[1:5], memory, None, size=size)
        return output, last
    return None if _traced(*arrays) else chunks(memory, of, size)


def recurrent(memory: Array, of: Terms) -> tuple[Array, Array] | None:
    """Return the same, token by token; None as well while gradients are traced."""
    arrays = (memory, of.query, of.key, of.value, of.log_decay, of.erase)
    if not on_numpy(*arrays) or _traced(*arrays):
        return None
    return token_by_token(memory, of)


def _traced(*arrays: Any) -> bool:
    return any(raw(x) is not x for x in arrays)
