"""Inputs of operators, their axes, and inputs under which one operator is another.

Letters of axes: ``b`` batch, ``h`` heads of queries and keys, ``g`` heads of values (as
many, or a multiple), ``t`` queries, ``s`` keys, ``k`` and ``v`` their channels, ``m``
slots, ``l`` levels, ``p`` pairs of the channels of keys, ``r`` keys of one token.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Input", "Reduction"]

# Letters of axes along which tokens lie, and of those that are heads.
TOKENS, HEADS = "ts", "hg"


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
        Names of its parameter in the field, besides the canonical one.
    optional : bool
        Whether it may be None, which means its neutral value.
    unless : str
        A parameter beside which the aliases mean something else.
    draw : {"", "exponent", "logit", "normal", "positive", "score", "signed", "unit"}
        Distribution of its random entries in problems; empty for that of its name. A
        ``logit`` or ``exponent`` enters an exponential, and a product with a ``score``
        does; entries of a ``signed`` vector have one sign.
    """

    name: str
    axes: str
    aliases: tuple[str, ...] = ()
    optional: bool = False
    unless: str = ""
    draw: str = ""

    @property
    def per_token(self) -> bool:
        """True if each token has its own, so that it is cut with the tokens."""
        return any(letter in self.axes for letter in TOKENS)

    @property
    def head_axis(self) -> int | None:
        """Index of the axis of the heads, if there is one."""
        return self._first_axis(HEADS)

    @property
    def token_axis(self) -> int | None:
        """Index of the axis of the tokens, if there is one."""
        return self._first_axis(TOKENS)

    def _first_axis(self, letters: str) -> int | None:
        return next((self.axes.index(a) for a in letters if a in self.axes), None)


@dataclass(frozen=True)
class Reduction:
    """Inputs under which one operator is another.

    Parameters
    ----------
    to : str
        Name of the other operator.
    constants : mapping from str to float
        Inputs that are one number everywhere; log-decays as natural logarithms.
    spread : mapping from str to str
        Inputs whose channels all equal the first channel of an input, by its name.
    copies : mapping from str to str
        Inputs that equal another input.
    first_channels : mapping from str to str
        Inputs of the other operator that are the first channel of an input of this one.
    without_values : bool
        Whether the other operator gets values of zero: nothing is written.
    small_scores : bool
        Whether no sum of scores may exceed one, so that a floor of a denominator is
        what divides.
    """

    to: str
    constants: Mapping[str, float] = field(default_factory=dict, hash=False)
    spread: Mapping[str, str] = field(default_factory=dict, hash=False)
    copies: Mapping[str, str] = field(default_factory=dict, hash=False)
    first_channels: Mapping[str, str] = field(default_factory=dict, hash=False)
    without_values: bool = False
    small_scores: bool = False
