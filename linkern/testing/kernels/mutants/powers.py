"""Defects of power retention: its products, its gate and its normalizer."""

from functools import partial

import numpy as np

from linkern.testing.kernels.assembly import Inputs
from linkern.testing.kernels.correct.powers import by_tokens, products
from linkern.testing.kernels.mutants.catalogue import before, enter

__all__: list[str] = []

_SQUARES = partial(products, degree=2)


def _normalizer_lost(call: Inputs) -> Inputs:
    """Take over the memory of an initial state alone."""
    state = call.get("initial_state")
    if state is None:
        return call
    return {**call, "initial_state": (state[0], np.zeros_like(state[1]))}


def _gate_of_next_token(call: Inputs) -> Inputs:
    """Decay by the gate of the token after; nothing after the last."""
    gate = call.get("log_decay")
    if gate is None:
        return call
    later = np.concatenate([gate[..., 1:], np.zeros_like(gate[..., :1])], axis=-1)
    return {**call, "log_decay": later}


enter(
    "products_counted_once",
    by_tokens(partial(products, degree=2, weighed=False)),
    "#60: fla 85992884: a factor of the scores",
    op="power_retention",
)
enter(
    "normalizer_not_decayed",
    by_tokens(_SQUARES, decays_normalizer=False),
    "#106: performer-pytorch #40: a path that the normaliser is left out of",
    op="power_retention",
)
enter(
    "power_gate_of_next_token",
    before(by_tokens(_SQUARES), _gate_of_next_token),
    "#31: fla 0c1c0b65: exclusive and inclusive sums exchanged",
    op="power_retention",
)
enter(
    "normalizer_of_the_state_lost",
    before(by_tokens(_SQUARES), _normalizer_lost),
    "#93: fla #285: the state of a half is not the state of the whole",
    "state_split",
    "decoding",
    op="power_retention",
)
