"""Choosing the next token from its logits."""

import math
import numbers
from typing import Any

from linkern import validate
from linkern.array import from_numpy, namespace
from linkern.typing import Array

__all__ = ["checked_temperature", "checked_top_k", "sample"]


def sample(
    logits: Array,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    rng: Any = None,
) -> Array:
    r"""Draw a token for each row of logits.

    Parameters
    ----------
    logits : array (..., vocabulary)
        Logarithms of weights, up to a constant.
    temperature : float
        What logits are divided by. 0 takes the largest: greedy.
    top_k : int, optional
        Draw from the `top_k` largest only; ties with the last of them stay in. Default:
        from all.
    rng : int, numpy.random.Generator or None
        Where randomness comes from: the same draws for every library.

    Returns
    -------
    integer array (...)
        Tokens.

    Raises
    ------
    TypeError, ValueError
        If an option is of the wrong type or out of range.

    Notes
    -----
    The largest of :math:`l_i / temperature + G_i`, with independent Gumbel noise, is
    token i with probability softmax(l / temperature)_i (Gumbel 1954).

    Examples
    --------
    >>> import numpy as np
    >>> sample(np.asarray([[0.0, 2.0, 1.0]]), temperature=0)
    array([1])
    """
    wide = validate.widened("logits", logits)
    xp = namespace(wide)
    temperature = checked_temperature(temperature)
    top_k = checked_top_k(top_k)
    if temperature == 0:
        return xp.argmax(wide, axis=-1)  # type: ignore[no-any-return]
    if top_k is not None and top_k < wide.shape[-1]:
        least = xp.sort(wide, axis=-1)[..., -top_k][..., None]
        wide = xp.where(wide >= least, wide, -math.inf + xp.zeros_like(wide))
    noise = validate.generator(rng).gumbel(size=tuple(wide.shape))
    gumbel = from_numpy(noise, like=wide)
    return xp.argmax(wide / temperature + gumbel, axis=-1)  # type: ignore[no-any-return]


def checked_temperature(value: Any) -> float:
    """Check the temperature that divides the logits."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        msg = f"`temperature` must be a real number, got {value!r}."
        raise TypeError(msg)
    if not 0 <= float(value) < math.inf:
        msg = f"`temperature` must be finite and not negative, got {value!r}."
        raise ValueError(msg)
    return float(value)


def checked_top_k(value: Any) -> int | None:
    """Check the number of most likely tokens to draw from."""
    return None if value is None else validate.positive_integer("top_k", value)
