"""Decoding state of a model: one state for each layer."""

from typing import Any

from linkern.array import concat
from linkern.transformer.cache import Cache, stacked
from linkern.transformer.models import Model, described
from linkern.transformer.parameters import children, kind, rebuilt, static
from linkern.transformer.stack import LayerState
from linkern.typing import Array

__all__ = ["DecodingState", "belongs", "rows_of", "side_by_side"]


@kind
class DecodingState:
    """State of a model after the tokens so far.

    Parameters
    ----------
    layers : tuple of LayerState
        One for each layer.
    position : integer array (N,)
        How many tokens each sequence has had.
    model : str
        Which models it fits.
    """

    layers: tuple[LayerState, ...]
    position: Array
    model: str = static()


def belongs(parameters: Model, state: Any) -> None:
    """Check that a state comes from a model of the same structure."""
    if not isinstance(state, DecodingState):
        msg = (
            "`state` must be a DecodingState, as `prefill` returns, got "
            f"{type(state).__name__}."
        )
        raise TypeError(msg)
    expected = described(parameters)
    if state.model != expected:
        got = f"got one of ({state.model})"
        msg = f"`state` must be that of this model ({expected}), {got}."
        raise ValueError(msg)


def rows_of(node: Any, rows: slice) -> Any:
    """Return the state of some of the sequences."""
    below = children(node)
    if below is None:
        return None if node is None else node[rows, ...]
    return rebuilt(node, {name: rows_of(x, rows) for name, x in below.items()})


def side_by_side(states: list[Any]) -> Any:
    """Return the states of several batches concatenated."""
    first = states[0]
    if isinstance(first, Cache):
        return stacked(states)
    below = children(first)
    if below is None:
        return None if first is None else concat(states, axis=0)
    parts = [children(state) or {} for state in states]
    return rebuilt(
        first, {name: side_by_side([part[name] for part in parts]) for name in below}
    )
