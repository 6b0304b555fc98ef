"""One call of an operator on a tape, and how its entries are moved about.

A program takes a call, which has inputs by name, a scale, a state and the position of
the first token, and returns the output and the new state. Inputs are ``(B, H, T, .)``;
heads of queries and keys are repeated where there are more heads of values.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linkern.oracle.features import FEATURE_MAPS, FeatureMap
from linkern.oracle.sums import Quotient
from linkern.oracle.tape import Node, Tape

__all__ = [
    "Call",
    "Options",
    "Program",
    "as_row",
    "column",
    "joined",
    "picked",
    "placed",
    "reshaped",
    "sliced",
    "swapped",
    "taken",
]

Real = NDArray[np.float64]


@dataclass(frozen=True)
class Options:
    """Declared properties of a call besides its arithmetic.

    Parameters
    ----------
    query_map, key_map : FeatureMap
        Maps that are applied to queries and keys.
    normalize, eps, eps_mode, constant : bool, float, str, bool
        As in `Quotient`.
    feature_error : {"absolute", "relative", "none"}
        The error that a kernel may make in a feature: that of the map, at most a few
        units of the feature, or none.
    exact : bool
        Whether every sum is of numbers that add up exactly.
    output_dtype : str or None
        Dtype of the output, which a kernel may use again for its gradients.
    """

    query_map: FeatureMap = FEATURE_MAPS["elu_plus_one"]
    key_map: FeatureMap = FEATURE_MAPS["elu_plus_one"]
    normalize: bool = True
    eps: float = 0.0
    eps_mode: str = "denominator"
    constant: bool = False
    feature_error: str = "absolute"
    exact: bool = False
    output_dtype: str | None = None

    def quotient(self, scale: float) -> Quotient:
        """Return how the output is formed, with scores times `scale`."""
        return Quotient(self.normalize, scale, self.eps, self.eps_mode, self.constant)


@dataclass(frozen=True)
class Call:
    """One call of an operator on a tape.

    Parameters
    ----------
    tape : Tape
        Where operations are recorded.
    inputs : mapping from str to Node
        Those that were given.
    scale : float
        Factor on the scores.
    state : tuple of Node
        Memory, and normalizer where there is one.
    position : int
        Absolute position of the first token.
    causal : bool
        Whether query i sees keys 0..i only.
    options : Options
        What else is declared.
    early_erase : bool
        Whether an erase reads the memory before its decay.
    """

    tape: Tape
    inputs: Mapping[str, Node]
    scale: float
    state: tuple[Node, ...]
    position: int = 0
    causal: bool = True
    options: Options = Options()
    early_erase: bool = False

    def __getitem__(self, name: str) -> Node:
        return self.inputs[name]

    def get(self, name: str) -> Node | None:
        """Return an input, or None."""
        return self.inputs.get(name)

    def shared(self, name: str) -> Node:
        """Return an input of the query heads, repeated for the heads of values."""
        x, heads = self.inputs[name], self.inputs["value"].shape[-3]
        groups = heads // x.shape[-3]
        if groups == 1:
            return x
        one = self.tape.linear(x, lambda y: y[..., None, :, :], _without_axis)
        wide = self.tape.contract(
            "...,...->...",
            one,
            self.tape.constant(np.ones((groups, 1, 1))),
            prepared=True,
        )
        return reshaped(self.tape, wide, (*x.shape[:-3], heads, *x.shape[-2:]))

    def per_channel(self, name: str) -> Node | None:
        """Return a gate of one number for each token with an axis for channels."""
        x = self.inputs.get(name)
        return None if x is None else column(self.tape, x)


Program = Callable[[Call], tuple[Node, tuple[Node, ...]]]


def _without_axis(y: Real) -> Real:
    return y[..., 0, :, :]


def reshaped(tape: Tape, x: Node, shape: tuple[int, ...]) -> Node:
    """Return the same entries in another shape."""
    return tape.linear(x, lambda y: y.reshape(shape), lambda y: y.reshape(x.shape))


def column(tape: Tape, x: Node) -> Node:
    """Return a node with one more axis, of channels."""
    return tape.linear(x, lambda y: y[..., None], lambda y: y[..., 0])


def sliced(tape: Tape, x: Node, first: int, last: int) -> Node:
    """Return the channels from `first` to before `last`."""

    def back(y: Real) -> Real:
        whole = np.zeros((*y.shape[:-1], x.shape[-1]))
        whole[..., first:last] = y
        return whole

    return tape.linear(x, lambda y: y[..., first:last], back)


def taken(tape: Tape, x: Node, channels: Sequence[int]) -> Node:
    """Return some channels, each once."""

    def back(y: Real) -> Real:
        whole = np.zeros((*y.shape[:-1], x.shape[-1]))
        whole[..., channels] = y
        return whole

    return tape.linear(x, lambda y: y[..., channels], back)


def swapped(tape: Tape, x: Node) -> Node:
    """Return a node with its last two axes swapped."""

    def swap(y: Real) -> Real:
        return np.swapaxes(y, -1, -2)

    return tape.linear(x, swap, swap)


def placed(tape: Tape, x: Node, slot: int, slots: int) -> Node:
    """Put the row of each token into one of the slots of the token."""

    def forward(y: Real) -> Real:
        wide = np.zeros((*y.shape[:-2], y.shape[-2] * slots, y.shape[-1]))
        wide[..., slot::slots, :] = y
        return wide

    return tape.linear(x, forward, lambda y: y[..., slot::slots, :])


def picked(tape: Tape, x: Node, slot: int, slots: int) -> Node:
    """Return the row of one slot of every token."""

    def backward(y: Real) -> Real:
        wide = np.zeros(x.shape)
        wide[..., slot::slots, :] = y
        return wide

    return tape.linear(x, lambda y: y[..., slot::slots, :], backward)


def joined(tape: Tape, x: Node, y: Node, axis: int = -1) -> Node:
    """Concatenate two nodes of equal leading axes, as a sum of padded ones."""
    sizes = x.shape[axis], y.shape[axis]

    def padded(node: Node, before: int, after: int) -> Node:
        widths = [(0, 0)] * len(node.shape)
        widths[axis] = (before, after)
        index = [slice(None)] * len(node.shape)
        index[axis] = slice(before, before + node.shape[axis])
        return tape.linear(node, lambda z: np.pad(z, widths), lambda z: z[tuple(index)])

    first, second = padded(x, 0, sizes[1]), padded(y, sizes[0], 0)
    return tape.overlay(first, second)


def as_row(tape: Tape, x: Node) -> Node:
    """Return a vector of channels as one row of tokens."""
    return tape.linear(x, lambda y: y[..., None, :], lambda y: y[..., 0, :])
