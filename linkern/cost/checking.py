"""Checks of what a cost depends on: sizes, inputs, and the shapes that follow."""

from collections.abc import Collection, Mapping
from math import prod
from typing import Any, NamedTuple

from linkern import operators, validate
from linkern.cost.work import WORK, Given, Sizes
from linkern.operators.definition import Definition
from linkern.operators.register import definition_of, known_definition

__all__ = [
    "Call",
    "checked",
    "definition_named",
    "name_of",
    "numbers_read",
    "width_of",
]

_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
_NAMES = {"k": "key_dim", "v": "value_dim", "m": "slots"}


class Call(NamedTuple):
    """Checked call: sizes, inputs, and the shapes that follow."""

    sizes: dict[str, int]
    inputs: Given
    axes: Mapping[str, str]
    state: tuple[tuple[int, ...], ...]


def name_of(op: Any) -> str:
    """Return the name of an operator, for the operator itself or its name."""
    definition = known_definition(op)
    name = op if definition is None else definition.name
    if not isinstance(name, str) or name not in WORK:
        msg = (
            f"`op` must be one of {', '.join(sorted(WORK))}, the operator or its name, "
            f"got {op!r}."
        )
        raise ValueError(msg)
    return name


def checked(
    op: str,
    length: int,
    value_dim: int,
    key_dim: int | None,
    slots: int | None,
    steps: int,
    levels: int | None,
    without: Collection[str],
) -> Call:
    """Check what the cost of any call depends on; `op` is a name from `name_of`."""
    axes, required = _interface(op)
    sizes = {
        "t": validate.positive_integer("length", length),
        **_dimensions(op, axes, {"k": key_dim, "v": value_dim, "m": slots}),
    }
    sizes["s"] = validate.positive_integer("steps", steps) * sizes["t"]
    sizes["r"] = steps if _has(axes, "r") else 1
    if not _has(axes, "s") and not _has(axes, "r"):
        _neutral(op, "steps", steps, 1)
    if sizes.get("k", 0) % sizes["r"]:
        msg = f"`key_dim` must be a multiple of {steps} `steps`, got {key_dim}."
        raise ValueError(msg)
    least = sizes["l"] = sizes["t"].bit_length() + 1
    if not _has(axes, "l"):
        _neutral(op, "levels", levels, None)
    elif levels is not None:
        sizes["l"] = validate.at_least("levels", levels, least)
    sizes["p"] = 0 if "angle" in without else sizes.get("k", 0) // sizes["r"] // 2
    _optional(op, without, axes.keys() - set(required))
    return Call(
        {**sizes, **_derived(sizes)},
        frozenset(axes) - frozenset(without),
        axes,
        _state(op, sizes | _derived(sizes)),
    )


def _dimensions(
    op: str, axes: Mapping[str, str], dims: Mapping[str, Any]
) -> dict[str, int]:
    """Check that the dimensions are given that the operator has, and no others."""
    sizes = {}
    for letter, size in dims.items():
        name = _NAMES[letter]
        if _has(axes, letter):
            sizes[letter] = validate.positive_integer(name, size)
        else:
            _neutral(op, name, size, None)
    return sizes


def _optional(op: str, without: Collection[str], known: Collection[str]) -> None:
    """Check the names of inputs that are not given."""
    if isinstance(without, str):
        msg = f"`without` must be a collection of names, got the string {without!r}."
        raise TypeError(msg)
    for name in without:
        if name not in known:
            all_of_them = ", ".join(sorted(known)) or "none"
            msg = (
                f"`without` must name optional inputs of {op} ({all_of_them}), got "
                f"{name!r}."
            )
            raise ValueError(msg)


def _has(axes: Mapping[str, str], letter: str) -> bool:
    return any(letter in letters for letters in axes.values())


def _neutral(op: str, name: str, size: Any, neutral: int | None) -> None:
    """Check that a size that an operator does not have is not given."""
    if size != neutral:
        msg = f"`{name}` must be {neutral} for {op}, got {size!r}; it has none."
        raise ValueError(msg)


def definition_named(op: str) -> Definition:
    """Return the record of an operator."""
    return definition_of(getattr(operators, op))


def _interface(op: str) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Return the axes of the inputs, and those that must be given."""
    definition = definition_named(op)
    axes = dict(definition.axes)
    if op == "lightning_attention":
        del axes["log_decay"]  # follows from the head
    return axes, definition.required


def _state(op: str, sizes: Sizes) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the parts of the state of one head."""
    definition = definition_named(op)
    memory = definition.memory(sizes)
    if definition.normalizer is None:
        return (memory,)
    return memory, definition.normalizer(sizes)


def _derived(sizes: Sizes) -> dict[str, int]:
    """Return the sizes that `linkern.cost.work` needs besides."""
    keys, values = sizes.get("k", 0), sizes["v"]
    return {
        "1": 1,
        "2t": 2 * sizes["t"],
        "v+1": values + 1,
        "k+v": keys + values,
        "k/r": keys // sizes["r"],
        "kk": keys * keys,
        "f": keys * (keys + 1) // 2,
        "1+k+kk": 1 + keys + keys * keys,
    }


def numbers_read(call: Call, heads: int, batch: int) -> int:
    """Return how many numbers the inputs have."""
    numbers = 0
    for name in call.inputs:
        letters = call.axes[name]
        # What has no tokens is one for each head, the same in all batches.
        many = heads * (batch if letters[:1] in ("t", "s") else 1)
        numbers += many * prod(call.sizes[x] for x in letters)
    return numbers


def width_of(dtype: Any) -> int:
    """Return the bytes of a number."""
    if dtype not in _BYTES:
        known = ", ".join(f'"{x}"' for x in _BYTES)
        msg = f"`dtype` must be one of {known}, got {dtype!r}."
        raise ValueError(msg)
    return _BYTES[dtype]
