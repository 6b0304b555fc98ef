"""Checks of gates, candidates and initial states against each other."""

from linkern import validate
from linkern.array import broadcast_to, zeros
from linkern.typing import Array

__all__ = ["fitted", "gates"]


def gates(name: str, x: Array) -> Array:
    """Return gates in float32 or wider after checking them."""
    wide = validate.widened(name, x)
    if x.ndim < 2:
        msg = f"`{name}` must have shape (..., T, D), got {tuple(x.shape)}."
        raise ValueError(msg)
    validate.within(name, wide, 0.0, 1.0)
    return wide


def fitted(
    update: Array, candidate: Array, initial_hidden: Array | None
) -> tuple[Array, Array, Array]:
    """Return gates, candidates and initial state with all leading axes, widened."""
    z, c = (
        validate.widened("update", update),
        validate.widened("candidate", candidate),
    )
    if z.ndim < 2 or tuple(z.shape[-2:]) != tuple(c.shape[-2:]):
        msg = (
            "`update` and `candidate` must have the same shape (..., T, D), got "
            f"{tuple(z.shape)} and {tuple(c.shape)}."
        )
        raise ValueError(msg)
    if initial_hidden is None:
        h = zeros((c.shape[-1],), like=c)
    else:
        h = validate.widened("initial_hidden", initial_hidden)
    validate.home({"update": z, "candidate": c, "initial_hidden": h})
    if h.ndim < 1 or h.shape[-1] != c.shape[-1]:
        msg = (
            f"`initial_hidden` must have shape (..., {c.shape[-1]}), got "
            f"{tuple(h.shape)}."
        )
        raise ValueError(msg)
    names = "update, candidate and initial_hidden"
    lead = validate.leading(
        names, tuple(z.shape[:-2]), tuple(c.shape[:-2]), tuple(h.shape[:-1])
    )
    z, c = (broadcast_to(x, (*lead, *x.shape[-2:])) for x in (z, c))
    return z, c, broadcast_to(h, (*lead, h.shape[-1]))
