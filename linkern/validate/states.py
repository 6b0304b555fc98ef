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
    "state_before",
    "state_parts",
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
    memory, normalizer = state_parts("initial_state", state)
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


def state_parts(
    name: str, state: Any, rule: str = "a `State` or None"
) -> tuple[Any, Any]:
    """Return the memory and the normalizer of a state; `rule` says what it must be."""
    try:
        memory, normalizer = state.memory, state.normalizer
    except AttributeError:
        msg = f"`{name}` must be {rule}, got {type(state).__name__}."
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
    for part, (mine, other) in _both("later", later, "", earlier).items():
        if tuple(mine.shape) != tuple(other.shape):
            msg = (
                f"`later.{part}` must have the shape of this state's {part}, "
                f"{tuple(mine.shape)}, got {tuple(other.shape)}."
            )
            raise ValueError(msg)


def state_before(name: str, state: Any, span: str, increment: Any) -> None:
    """Check a state before a span of tokens against the increment called `span`."""
    both = _both(name, state, span, increment)
    batch = tuple(increment.memory.shape[:-2])
    for part, (mine, other) in both.items():
        core = tuple(mine.shape)[len(batch) :]
        got = tuple(other.shape)
        lead = got[: len(got) - len(core)]
        if got[len(lead) :] != core or not broadcasts_to(lead, batch):
            msg = (
                f"`{name}.{part}` must have shape {(*batch, *core)}, that of "
                f"`{span}.{part}`, or leading axes that broadcast to it, got {got}."
            )
            raise ValueError(msg)


def _both(
    name: str, state: Any, other: str, known: Any
) -> dict[str, tuple[Array, Array]]:
    """Return the parts of two states, each of one library, device and dtype.

    `other` is the name of the state `known`, and empty for the one whose method it is.
    """
    memory, normalizer = state_parts(name, state, "a `State`")
    if (known.normalizer is None) != (normalizer is None):
        one = f"`{other}`" if other else "this state"
        msg = f"`{name}` must carry a normalizer exactly when {one} does."
        raise ValueError(msg)
    both = {"memory": (known.memory, memory)}
    if normalizer is not None:
        both["normalizer"] = (known.normalizer, normalizer)
    for part, (mine, x) in both.items():
        wide_dtype(f"{name}.{part}", x)
        home({f"{other}.{part}".lstrip("."): mine, f"{name}.{part}": x})
    return both


def packed_state(state: Any, segments: int) -> None:
    """Check that a state has one entry for each packed sequence."""
    memory, normalizer = state_parts("initial_state", state)
    for part, x in (("memory", memory), ("normalizer", normalizer)):
        if x is not None and (not is_array(x) or x.ndim < 1 or x.shape[0] != segments):
            got = tuple(x.shape) if is_array(x) else type(x).__name__
            msg = (
                f"`initial_state.{part}` must have the packed sequences as its first "
                f"axis, {segments} of them, got {got}."
            )
            raise ValueError(msg)
