"""Checks of states against the inputs that continue them."""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from linkern.array import is_array
from linkern.typing import Array
from linkern.validate.arrays import broadcasts_to, home, wide_dtype
from linkern.validate.layout import AXES, axis_names, heads_last

__all__ = [
    "combinable",
    "initial_state",
    "one_memory",
    "packed_state",
]


# From the sizes of the axes, or their names, to the last axes of each part of a state.
StateShapes = Callable[[Mapping[str, Any]], dict[str, tuple[Any, ...]]]


def initial_state(
    state: Any,
    shapes: StateShapes,
    sizes: Mapping[str, int],
    batch: tuple[int, ...],
    like: Array,
    *,
    normalize: bool | None = None,
) -> dict[str, tuple[int, ...]]:
    """Check an initial state, and return the last axes of the parts that it has.

    `normalize` is the option of that name, None for operators that have none.
    """
    cores = shapes(sizes)
    memory, normalizer = _state_parts("initial_state", state)
    parts = {"memory": memory, "normalizer": normalizer}
    if ("normalizer" in cores) == (normalizer is None):
        _wrong_normalizer(normalizer, normalize=normalize)
    named = {f"initial_state.{part}": parts[part] for part in cores}
    for name, x in named.items():
        wide_dtype(name, x)
    home({"the inputs, widened," if normalize is None else "key": like, **named})
    for part, core in cores.items():
        got = tuple(parts[part].shape)
        lead = got[: len(got) - len(core)]
        if got[len(lead) :] != core or not broadcasts_to(lead, batch):
            msg = (
                f"`initial_state.{part}` must have shape "
                f"{axis_names(shapes(AXES)[part])} = {(*batch, *core)}, or leading "
                f"axes that broadcast to it, got {got}"
                f"{_other_axes(got, core, lead, batch, sizes)}."
            )
            raise ValueError(msg)
    return cores


def _other_axes(
    got: tuple[int, ...],
    core: tuple[int, ...],
    lead: tuple[int, ...],
    batch: tuple[int, ...],
    sizes: Mapping[str, int],
) -> str:
    """Return a hint if another order of the axes explains a wrong shape."""
    if got[len(lead) :] == core:
        return heads_last(lead, batch, sizes["t"])
    if len(core) == 2 and got[len(lead) :] == core[::-1]:
        return "; of a memory (..., V, K) pass x.swapaxes(-2, -1)"
    return ""


def _wrong_normalizer(normalizer: Any, *, normalize: bool | None) -> NoReturn:
    """Raise the error about a normalizer that is missing or must not be there."""
    where, start = "for this operator", ""
    if normalize is not None:
        where = f"when `normalize` is {normalize}"
        start = "; start from `State.zeros(..., normalize=True)`"
    if normalizer is None:
        msg = f"`initial_state` must carry a normalizer {where}, got None{start}."
    else:
        msg = (
            f"`initial_state` must not carry a normalizer {where}; pass "
            "`State(memory, None)`."
        )
    raise ValueError(msg)


def _state_parts(name: str, state: Any) -> tuple[Any, Any]:
    try:
        memory, normalizer = state.memory, state.normalizer
    except AttributeError:
        msg = f"`{name}` must be a `State` or None, got {type(state).__name__}."
        raise TypeError(msg) from None
    return memory, normalizer


def one_memory(name: str, *, normalizer: bool) -> None:
    """Refuse a plain array for a state that has a normalizer beside the memory."""
    if normalizer:
        msg = (
            f"`{name}` must be a `State` where rows are divided by a normalizer, got "
            "one array; pass `linkern.State(memory, normalizer)`."
        )
        raise TypeError(msg)


def combinable(earlier: Any, later: Any) -> None:
    """Check that two states can be added."""
    memory, normalizer = _state_parts("later", later)
    if (earlier.normalizer is None) != (normalizer is None):
        msg = "`later` must carry a normalizer exactly when this state does."
        raise ValueError(msg)
    parts = {"memory": (earlier.memory, memory)}
    if normalizer is not None:
        parts["normalizer"] = (earlier.normalizer, normalizer)
    for part, (mine, other) in parts.items():
        wide_dtype(f"later.{part}", other)
        home({part: mine, f"later.{part}": other})
        if tuple(mine.shape) != tuple(other.shape):
            msg = (
                f"`later.{part}` must have the shape of this state's {part}, "
                f"{tuple(mine.shape)}, got {tuple(other.shape)}."
            )
            raise ValueError(msg)


def packed_state(state: Any, segments: int) -> None:
    """Check that a state has one entry for each packed sequence."""
    memory, normalizer = _state_parts("initial_state", state)
    for part, x in (("memory", memory), ("normalizer", normalizer)):
        if x is not None and (not is_array(x) or x.ndim < 1 or x.shape[0] != segments):
            got = tuple(x.shape) if is_array(x) else type(x).__name__
            msg = (
                f"`initial_state.{part}` must have the packed sequences as its first "
                f"axis, {segments} of them, got {got}."
            )
            raise ValueError(msg)
