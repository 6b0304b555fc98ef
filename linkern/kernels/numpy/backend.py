"""Entry points of the NumPy back end; arrays may be traced."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from linkern.array import broadcast_shapes, broadcast_to
from linkern.autodiff.tape import joint, raw
from linkern.core.recurrence import Terms
from linkern.feature_maps import identity
from linkern.kernels.dispatch import Backend
from linkern.kernels.numpy import backward, chunkwise_bwd, forward
from linkern.kernels.numpy.by_heads import by_heads
from linkern.kernels.numpy.chunkwise import chunks
from linkern.kernels.numpy.features import acts_on_entries, in_place
from linkern.kernels.numpy.one_token import attend_token, token
from linkern.kernels.numpy.recurrent import recurrent as token_by_token
from linkern.kernels.numpy.rotation import rotated
from linkern.kernels.numpy.running_sums import one_row
from linkern.typing import Array

__all__ = ["BACKEND", "attend", "chunkwise", "recurrent"]


# Tokens of a chunk, if no size is asked for. Half as many scores as with 64 save more
# time than twice as many sums of states take; with 16 they do not.
_SIZE = 32


def attend(
    *arrays: Any, feature_map: Any = identity, size: int | None = None, **options: Any
) -> tuple[Any, Any, Any]:
    """Call `linkern.kernels.numpy.forward.attend`, and `backward.pullback` for it."""
    known = {"feature_map": in_place(feature_map), "size": size or _SIZE}
    options = {**known, **options}

    def back(
        plain: Sequence[Any], varying: Sequence[int], cotangents: Mapping[int, Any]
    ) -> list[Any]:
        by_result = (cotangents.get(i) for i in range(3))
        gradients = backward.pullback(*plain, *by_result, **options)
        return [gradients[i] for i in varying]

    output, memory, normalizer = joint(partial(forward.attend, **options), back, arrays)
    return output, memory, normalizer


def chunkwise(
    memory: Array,
    terms: Terms,
    *,
    size: int | None,
    scale: float | None = None,
    check_gates: bool = False,
) -> tuple[Array, Array] | None:
    """Return the read-out and the memory after the last token, in chunks of `size`.

    None for terms as they were given, which need a scale or a look at their gates, and
    for gradients of pairs of memories, which array code takes.
    """
    if scale is not None or check_gates:
        return None
    size = size or _SIZE
    if terms.is_additive:
        if memory.shape[-2] == 1 and not _traced(memory, *terms[:4]):
            return one_row(memory, terms)
        output, last, _ = attend(*terms[:4], memory, None, size=size)
        return output, last
    if not _traced(memory, *terms.arrays()):
        return chunks(memory, terms, size)
    if terms.follow is not None:
        return None
    return _differentiable(memory, terms, size)


def _differentiable(memory: Any, terms: Terms, size: int) -> tuple[Any, Any]:
    """Call `linkern.kernels.numpy.chunkwise_bwd.forward`, and `pullback` for it."""
    arrays = (memory, *terms[:5])
    batch = broadcast_shapes(*(x.shape[:-2] for x in arrays if x is not None))
    items = [
        None if x is None else broadcast_to(x, (*batch, *x.shape[-2:])) for x in arrays
    ]
    names = Terms._fields[:5]
    kept: list[chunkwise_bwd.Checkpoints] = []

    def function(memory: Any, *rest: Any) -> tuple[Any, Any]:
        plain = terms._replace(**dict(zip(names, rest, strict=True)))
        output, last, checkpoints = chunkwise_bwd.forward(memory, plain, size)
        kept.append(checkpoints)
        return output, last

    def back(
        items: Sequence[Any], varying: Sequence[int], cotangents: Mapping[int, Any]
    ) -> list[Any]:
        plain = terms._replace(**dict(zip(names, items[1:], strict=True)))
        gradient, gradients = chunkwise_bwd.pullback(
            plain, kept[0], cotangents.get(0), cotangents.get(1)
        )
        return [gradients[names[i - 1]] if i else gradient for i in varying]

    output, last = joint(function, back, items)
    return output, last


def recurrent(
    memory: Array,
    terms: Terms,
    *,
    size: int | None = None,
    scale: float | None = None,
    check_gates: bool = False,
) -> tuple[Array, Array] | None:
    """Return the same, token by token; None for pairs and traced arrays as well."""
    del size  # a token
    if scale is not None or check_gates or terms.follow is not None:
        return None
    if _traced(memory, *terms[:5]):
        return None
    return token_by_token(memory, terms)


def _traced(*arrays: Any) -> bool:
    return any(raw(x) is not x for x in arrays)


BACKEND = Backend(
    recurrences={"auto": chunkwise, "chunkwise": chunkwise, "recurrent": recurrent},
    attend=attend,
    attends=frozenset((f, c) for f in ("auto", "chunkwise") for c in (True, False)),
    applies=acts_on_entries,
    token=token,
    attend_token=attend_token,
    rotated=rotated,
    by_heads=by_heads,
)
