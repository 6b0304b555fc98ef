"""The loop over spans, for traced arrays as well."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from linkern.array import namespace, on_jax
from linkern.autodiff.tape import Traced, joint, raw, recomputed
from linkern.core import compiled
from linkern.core import scan as loops
from linkern.core.recurrence import Terms
from linkern.typing import Array

__all__ = ["Checkpointed", "scan"]


@dataclass(frozen=True)
class Checkpointed:
    """A step whose pullback keeps its inputs alone; equal to that of an equal step."""

    step: Callable[..., tuple[Array, Array]]

    def __call__(self, memory: Array, terms: Terms) -> tuple[Array, Array]:
        """Take the step."""
        return recomputed(self.step, memory, terms)


def scan(
    step: compiled.Step,
    memory: Array,
    terms: Any,
    size: int,
    constants: Sequence[Array | None] = (),
    *,
    together: int = 1,
    counted: bool = False,
) -> tuple[Array | None, Array]:
    """Return the read-out of all tokens and the last memory, span after span.

    `linkern.core.scan.scan` for traced arrays as well. A loop of Python traces what its
    steps do; a loop that is compiled is one function, whose pullback its library knows.
    """
    items: tuple[Any, ...] = (memory, *terms, *constants)
    if Traced not in map(type, items) or not on_jax(raw(memory)):
        return loops.scan(
            *(step, memory, terms, size, constants),
            together=together,
            counted=counted,
        )
    varying = [i for i, x in enumerate(items) if isinstance(x, Traced) and x.varies]
    pullbacks: list[Any] = []
    results: list[Any] = []

    def forward(*plain: Any) -> tuple[Any, ...]:
        def by_varying(*arrays: Array) -> tuple[Array | None, Array]:
            filled = list(plain)
            for i, x in zip(varying, arrays, strict=True):
                filled[i] = x
            first, *own = filled[: 1 + len(terms)]
            rest = filled[1 + len(terms) :]
            part = type(terms)(*own)
            return loops.scan(step, first, part, size, rest, counted=counted)

        if not varying:
            return by_varying()
        made, back = compiled.pullback(by_varying, *(plain[i] for i in varying))
        pullbacks.append(back)
        results.extend(made)
        return cast(tuple[Any, ...], made)

    def back(
        _: Sequence[Any], __: Sequence[int], cotangent: Mapping[int, Any]
    ) -> Sequence[Any]:
        known = [cotangent.get(i) for i in range(len(results))]
        filled = tuple(
            namespace(x).zeros_like(x) if c is None and x is not None else c
            for c, x in zip(known, results, strict=True)
        )
        return cast(Sequence[Any], pullbacks[0](filled))

    return cast(tuple[Array | None, Array], joint(forward, back, items))
