"""Entry points of the NumPy back end; arrays may be traced."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from linkern.autodiff.tape import joint, raw
from linkern.core.recurrence import Terms
from linkern.feature_maps import identity
from linkern.kernels.dispatch import Backend
from linkern.kernels.numpy import backward, forward
from linkern.kernels.numpy.chunkwise import chunks
from linkern.kernels.numpy.features import acts_on_entries, in_place
from linkern.kernels.numpy.recurrent import recurrent as token_by_token
from linkern.typing import Array

__all__ = ["BACKEND", "attend", "chunkwise", "recurrent"]


def attend(
    *arrays: Any, feature_map: Any = identity, **options: Any
) -> tuple[Any, Any, Any]:
    """Call `linkern.kernels.numpy.forward.attend`, and `backward.pullback` for it."""
    options = {"feature_map": in_place(feature_map), **options}

    def back(
        plain: Sequence[Any], varying: Sequence[int], cotangents: Mapping[int, Any]
    ) -> list[Any]:
        by_result = (cotangents.get(i) for i in range(3))
        gradients = backward.pullback(*plain, *by_result, **options)
        return [gradients[i] for i in varying]

    output, memory, normalizer = joint(partial(forward.attend, **options), back, arrays)
    return output, memory, normalizer


def chunkwise(
    memory: Array, terms: Terms, *, size: int | None, scale: float | None = None
) -> tuple[Array, Array] | None:
    """Return the read-out and the memory after the last token, in chunks of `size`.

    None for a scale, and for gradients that have no closed form here.
    """
    if scale is not None or size is None:
        return None
    if terms.is_additive:
        output, last, _ = attend(*terms[:4], memory, None, size=size)
        return output, last
    return None if _traced(memory, *terms[:5]) else chunks(memory, terms, size)


def recurrent(
    memory: Array, terms: Terms, *, size: int | None = 1, scale: float | None = None
) -> tuple[Array, Array] | None:
    """Return the same, token by token; None for a scale and for traced arrays."""
    if scale is not None or size != 1 or _traced(memory, *terms[:5]):
        return None
    return token_by_token(memory, terms)


def _traced(*arrays: Any) -> bool:
    return any(raw(x) is not x for x in arrays)


BACKEND = Backend(
    recurrences={"auto": chunkwise, "chunkwise": chunkwise, "recurrent": recurrent},
    attend=attend,
    attends=frozenset((f, c) for f in ("auto", "chunkwise") for c in (True, False)),
    applies=acts_on_entries,
)
