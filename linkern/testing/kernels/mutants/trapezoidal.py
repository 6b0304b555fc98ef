"""Defects of Mamba-3: its rotation, its second write, and the state of both."""

from typing import Any

import numpy as np

from linkern.testing.kernels.assembly import Array, Inputs
from linkern.testing.kernels.correct.trapezoidal import Token, by_tokens
from linkern.testing.kernels.mutants.catalogue import before, enter

__all__: list[str] = []

_TOKENS = by_tokens()


def _not_decayed(token: Token) -> Array:
    """Leave the decay out of the write for the token before."""
    return (1 - token.share) * token.step


def _step_of_the_one_before(token: Token) -> Array:
    """Write for the token before with its own step."""
    return (1 - token.share) * token.step_before * token.decay


def _in_halves(x: Array, angle: Array) -> Array:
    """Rotate the first half of the channels with the second."""
    size = angle.shape[-1]
    first, second = x[..., :size], x[..., size : 2 * size]
    turned = (
        first * np.cos(angle) - second * np.sin(angle),
        second * np.cos(angle) + first * np.sin(angle),
    )
    return np.concatenate([*turned, x[..., 2 * size :]], axis=-1)


def _changed_state(call: Inputs, part: slice) -> Inputs:
    state: Any = call.get("initial_state")
    if state is None:
        return call
    carried = state[1].copy()
    carried[..., part] = 0
    return {**call, "initial_state": (state[0], carried)}


def _angle_lost(call: Inputs) -> Inputs:
    """Start the angles of a call at zero, whatever came before."""
    return _changed_state(call, slice(None, call["angle"].shape[-1]))


def _token_lost(call: Inputs) -> Inputs:
    """Forget the last key and value of the call before."""
    return _changed_state(call, slice(call["angle"].shape[-1], None))


enter(
    "write_for_the_one_before_not_decayed",
    by_tokens(_not_decayed),
    "#106: performer-pytorch #40: a path that the normaliser is left out of",
    op="mamba3",
)
enter(
    "write_with_the_step_of_the_one_before",
    by_tokens(_step_of_the_one_before),
    "#31: fla 0c1c0b65: exclusive and inclusive sums exchanged",
    op="mamba3",
)
enter(
    "channels_rotated_in_halves",
    by_tokens(rotate=_in_halves),
    "#116: sparkinfer #610: prefill writes S, decoding reads its transpose",
    op="mamba3",
)
enter(
    "last_key_kept_without_rotation",
    by_tokens(keeps_rotation=False),
    "#90: fla cde25dfd: what one form does, and another does not",
    op="mamba3",
)
enter(
    "angle_of_the_state_lost",
    before(_TOKENS, _angle_lost),
    "#112: sglang #31833: a grid that begins at the call, not at the sequence",
    "state_split",
    "decoding",
    op="mamba3",
)
enter(
    "last_token_of_the_state_lost",
    before(_TOKENS, _token_lost),
    "#93: fla #285: the state of a half is not the state of the whole",
    "state_split",
    "decoding",
    op="mamba3",
)
