"""An operator as data: its inputs, their axes, and what laws hold of it.

Letters of axes: ``b`` batch, ``h`` heads of queries and keys, ``g`` heads of values (as
many, or a multiple), ``t`` queries, ``s`` keys, ``k`` and ``v`` their channels, ``m``
slots, ``l`` levels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["INVERSE_ROOT_KEY_DIM", "Input", "Operator"]

# Letters of axes along which tokens lie, and of those that are heads.
TOKENS, HEADS = "ts", "hg"
INVERSE_ROOT_KEY_DIM = "K^-0.5"


@dataclass(frozen=True)
class Input:
    """One input of an operator.

    Parameters
    ----------
    name : str
        Its canonical name.
    axes : str
        A letter for each of its axes; those of tokens come after batch and heads.
    aliases : tuple of str
        How its parameter is called in the field, besides the name.
    optional : bool
        Whether it may be None, which means its neutral value.
    unless : str
        A parameter beside which the aliases mean something else.
    """

    name: str
    axes: str
    aliases: tuple[str, ...] = ()
    optional: bool = False
    unless: str = ""

    @property
    def per_token(self) -> bool:
        """Whether each token has its own, so that it is cut with the tokens."""
        return any(letter in self.axes for letter in TOKENS)

    @property
    def head_axis(self) -> int | None:
        """Which axis is that of the heads, if there is one."""
        found = (self.axes.index(a) for a in HEADS if a in self.axes)
        return next(found, None)

    @property
    def token_axis(self) -> int | None:
        """Which axis is that of the tokens, if there is one."""
        found = (self.axes.index(a) for a in TOKENS if a in self.axes)
        return next(found, None)


@dataclass(frozen=True)
class Operator:
    """One operator, called with its inputs in their order.

    Parameters
    ----------
    name : str
        What ``--op`` calls it.
    causal : bool
        Whether row i sums over keys 0..i only.
    summary : str
        Its equation in one line.
    inputs : tuple of Input
        What it is called with.
    scale : float or "K^-0.5"
        Factor on the scores where nothing is declared.
    normalised : bool
        Whether its rows are averages of the values.
    family : str or None
        Its name in `linkern.oracle.FAMILY`; None for linear attention, whose oracle
        knows feature maps and epsilons.
    state : tuple of tuple of str
        The axes of its memory in one head, and of its normalizer if it has one: letters
        of axes, ``1``, ``k+v``, or ``features`` for those of a polynomial of the key.
    erases : bool
        Whether it takes back what it wrote, so that an error can grow on its way.
    linear : tuple of str
        Inputs in each of which the output is linear.
    largest_key_dim : int or None
        Beyond which the exact answer takes too long, or nothing is proved of it.
    """

    name: str
    causal: bool
    summary: str
    inputs: tuple[Input, ...]
    scale: float | str = INVERSE_ROOT_KEY_DIM
    normalised: bool = False
    family: str | None = None
    state: tuple[tuple[str, ...], ...] = (("k", "v"),)
    erases: bool = False
    linear: tuple[str, ...] = ("query", "value")
    largest_key_dim: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its inputs."""
        return tuple(one.name for one in self.inputs)

    @property
    def has_scale(self) -> bool:
        """Whether there are scores that a scale could multiply."""
        return "query" in self.names

    @property
    def longest(self) -> int | None:
        """Beyond how many tokens the proof takes too long, or proves nothing."""
        if self.erases:
            # Several keys of a query are so many rows of the proof.
            return 40 if "s" in self.input("key").axes else 130
        if "ridge" in self.names:
            return 130
        return 300 if any("m" in one.axes for one in self.inputs) else None

    def input(self, name: str) -> Input:
        """Return the input of that name."""
        return next(one for one in self.inputs if one.name == name)

    def sizes(self, inputs: Mapping[str, Any]) -> dict[str, int]:
        """Return the size of each axis by its letter; 1 for those that no input has."""
        found = dict.fromkeys("bhgtskvml", 1)
        for one in reversed(self.inputs):
            if inputs.get(one.name) is not None:
                found |= zip(one.axes, inputs[one.name].shape, strict=False)
        present = {a for one in self.inputs for a in one.axes}
        for absent, like in (("t", "s"), ("s", "t"), ("h", "g"), ("g", "h")):
            if absent not in present:
                found[absent] = found[like]
        return {name: int(size) for name, size in found.items()}

    def state_shapes(self, sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
        """Return the shapes of memory and normalizer in one head."""
        key_dim, value_dim = sizes["k"], sizes["v"]
        known = {
            **sizes,
            "1": 1,
            "k+v": key_dim + value_dim,
            "features": 1 + key_dim + key_dim**2,
            "squares": key_dim**2,
        }
        return [tuple(known[axis] for axis in axes) for axes in self.state]
