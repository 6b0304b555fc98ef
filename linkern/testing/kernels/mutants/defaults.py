"""Defects of the scale: a default of another value, and a scale that is not heeded."""

from collections.abc import Callable
from typing import Any

from linkern.testing.kernels.assembly import (
    Array,
    Kernel,
    RecurrenceBackward,
    recurrence,
)
from linkern.testing.kernels.mutants.catalogue import enter

__all__: list[str] = []

# From the scale that is passed, if it is, and the sizes of a query and a value.
Scale = Callable[[float | None, dict[str, int]], float | None]


def _scaled(op: str, change: Scale) -> Kernel:
    """Return a correct kernel of an operator that is passed a changed scale."""
    right = recurrence(op)

    def kernel(**named: Any) -> Any:
        query, value = named["query"], named["value"]
        sizes = {"t": query.shape[2], "k": query.shape[3], "v": value.shape[3]}
        scale = change(named.pop("scale", None), sizes)
        return right(**named, scale=scale)

    kernel.__signature__ = right.__signature__  # type: ignore[attr-defined]
    return kernel


def _by_default(default: Callable[[dict[str, int]], float | None]) -> Scale:
    return lambda scale, sizes: default(sizes) if scale is None else scale


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


class _ForgetsScaleBackwards:
    """Gradients with the scale that the operator has by default."""

    _right = staticmethod(recurrence("gla", backward=RecurrenceBackward()))

    def __call__(
        self,
        query: Array,
        key: Array,
        value: Array,
        log_decay: Array,
        *,
        scale: float | None = None,
    ) -> Any:
        return self._right(query, key, value, log_decay, scale=scale)[0]

    def vjp(
        self,
        query: Array,
        key: Array,
        value: Array,
        log_decay: Array,
        output_cotangent: Array,
        scale: float | None = None,
    ) -> Any:
        del scale
        vjp: Any = self._right.vjp  # type: ignore[attr-defined]
        return vjp(query, key, value, log_decay, output_cotangent)[:-1]


enter(
    "scale_of_another_path_by_default",
    _scaled("rwkv7", _by_default(lambda n: n["k"] ** -0.5)),
    "fla: scale=1 in chunk_rwkv7, K^-0.5 in fused_recurrent_rwkv7",
    "short_sequences",
    op="rwkv7",
    by_chance=True,
)
enter(
    "scale_of_one_by_default_for_one_token",
    _scaled("gla", _by_default(lambda n: 1.0 if n["t"] == 1 else None)),
    "fla: paths of rwkv7 with defaults of their own",
    "short_sequences",
    op="gla",
    by_chance=True,
)
enter(
    "scale_of_value_channels_by_default",
    _scaled("simple_gla", _by_default(lambda n: n["v"] ** -0.5)),
    "fla #446: scale",
    op="simple_gla",
    by_chance=True,
)
enter(
    "scale_without_root_by_default",
    _scaled("kda", _by_default(lambda n: 1.0 / n["k"])),
    "fla #446: scale",
    op="kda",
    by_chance=True,
)
enter(
    "scale_of_padded_channels_by_default",
    _scaled("delta_rule", _by_default(lambda n: _power_of_two(n["k"]) ** -0.5)),
    "fla: tests with K of 60 and 100, padded to tiles",
    op="delta_rule",
    by_chance=True,
)
enter(
    "scale_applied_twice",
    _scaled(
        "gated_delta_rule",
        lambda scale, _: None if scale is None else scale * scale,
    ),
    "#60: fla 85992884: a scale that is passed is applied wrongly",
    op="gated_delta_rule",
    by_chance=True,
)
enter(
    "scale_ignored",
    _scaled("gated_delta_product", lambda *_: None),
    "fla: naive_gated_delta_product ignores its scale",
    op="gated_delta_product",
    by_chance=True,
)
enter(
    "scale_forgotten_backwards",
    _ForgetsScaleBackwards(),
    "#62: fla 332e877d: K^-0.5 is computed again",
    "gradient_value",
    op="gla",
    by_chance=True,
)
