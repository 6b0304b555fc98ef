"""Entry points of the CUDA back end; arrays may be traced."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from linkern.array import broadcast_shapes, broadcast_to
from linkern.autodiff.tape import joint, raw
from linkern.core.recurrence import Terms
from linkern.kernels.cuda import backward, forward
from linkern.kernels.cuda.launch import Device, device_of
from linkern.kernels.dispatch import Backend
from linkern.typing import Array

__all__ = ["BACKEND", "attend", "recurrence"]


def attend(
    *arrays: Any, size: int | None = None, causal: bool = True, **options: Any
) -> tuple[Any, Any, Any]:
    """Call `kernels.cuda.forward.attend` on the device of the arrays.

    Kernels choose chunks of their own: `size` is ignored.
    """
    check_gates = options.pop("check_gates", False)
    del size
    device = device_of(*arrays)
    if device is None or not causal:
        msg = "kernels need arrays of CuPy and a causal call"
        raise TypeError(msg)

    def back(
        plain: Sequence[Any], varying: Sequence[int], cotangents: Mapping[int, Any]
    ) -> list[Any]:
        by_result = (cotangents.get(i) for i in range(3))
        gradients = backward.pullback(device, *plain, *by_result, **options)
        return [gradients[i] for i in varying]

    on_device = partial(forward.attend, device, check_gates=check_gates, **options)
    output, memory, normalizer = joint(on_device, back, arrays)
    return output, memory, normalizer


def recurrence(
    memory: Array,
    terms: Terms,
    *,
    size: int | None = None,
    scale: float | None = None,
    check_gates: bool = False,
) -> tuple[Array, Array] | None:
    """Return the read-out, scaled, and the memory after the last token.

    Terms may be narrower than the memory. None for what kernels do not compute:
    memories that are read along the values, pairs of them, and gradients of terms that
    neither are additive nor a (gated) delta rule.
    """
    options: Any = {"scale": scale, "check_gates": check_gates}
    if terms.is_additive:
        output, last, _ = attend(*terms[:4], memory, None, size=size, **options)
        return output, last
    arrays = (memory, *terms.arrays())
    device = device_of(*arrays)
    traced = any(raw(x) is not x for x in arrays)
    if device is None or terms.transpose_state or terms.follow is not None:
        return None
    options["scale"] = 1.0 if scale is None else scale
    if traced:
        return _differentiable(device, memory, terms, options)
    return forward.recurrent(device, memory, terms, **options)


def _differentiable(
    device: Device, memory: Any, terms: Terms, options: Mapping[str, Any]
) -> tuple[Any, Any] | None:
    """Call `forward.recurrent`, and `backward.recurrent_pullback` for it."""
    if not backward.differentiates(device, raw(memory), terms.mapped(raw)):
        return None
    batch = broadcast_shapes(*(x.shape[:-2] for x in (memory, *terms.arrays())))
    names = ("query", "key", "value", "log_decay", "beta")
    items = [
        None if x is None else broadcast_to(x, (*batch, *x.shape[-2:]))
        for x in (memory, *(getattr(terms, name) for name in names))
    ]

    def plain(rest: Sequence[Any]) -> Terms:
        # Keys erase.
        return terms._replace(**dict(zip(names, rest, strict=True)), erase=rest[1])

    def function(memory: Any, *rest: Any) -> tuple[Any, Any]:
        return forward.recurrent(device, memory, plain(rest), **options)

    def back(
        items: Sequence[Any], varying: Sequence[int], cotangents: Mapping[int, Any]
    ) -> list[Any]:
        gradient, gradients = backward.recurrent_pullback(
            *(device, items[0], plain(items[1:])),
            *(cotangents.get(i) for i in range(2)),
            scale=options["scale"],
        )
        return [gradients[names[i - 1]] if i else gradient for i in varying]

    output, last = joint(function, back, items)
    return output, last


BACKEND = Backend(
    recurrences={"auto": recurrence},
    attend=attend,
    attends=frozenset({("auto", True)}),
    applies=forward.acts_on_entries,
    reads_as_given=frozenset({"auto"}),
)
