"""Defects of the delta rule with momentum: its second memory, and what follows it."""

import numpy as np

from linkern.testing.kernels.assembly import Inputs
from linkern.testing.kernels.correct.momentum import by_tokens
from linkern.testing.kernels.mutants.catalogue import before, enter

__all__: list[str] = []

_OP = "momentum_delta_rule"


def _one_gate(call: Inputs) -> Inputs:
    """Let the momentum decay as the memory does."""
    return {**call, "momentum_log_decay": call.get("log_decay")}


def _above_zero(call: Inputs) -> Inputs:
    """Keep the share away from zero, for its logarithm."""
    beta = call.get("beta")
    if beta is None:
        return call
    return {**call, "beta": beta + np.asarray(1e-6, beta.dtype)}


def _momentum_lost(call: Inputs) -> Inputs:
    """Take over the memory of an initial state, and begin its momentum anew."""
    state = call.get("initial_state")
    if state is None:
        return call
    state = np.array(state)
    state[..., state.shape[-2] // 2 :, :] = 0
    return {**call, "initial_state": state}


enter(
    "momentum_decays_after_its_write",
    by_tokens(late=True),
    "#31: fla 0c1c0b65: exclusive and inclusive sums exchanged",
    op=_OP,
)
enter(
    "erased_before_its_decay",
    by_tokens(undecayed=True),
    "#60: fla 85992884: a factor that one of two terms has",
    op=_OP,
)
enter(
    "momentum_decayed_by_the_other_gate",
    before(by_tokens(), _one_gate),
    "#92: fla 505809bf: arguments in another order",
    op=_OP,
)
enter(
    "share_above_zero",
    before(by_tokens(), _above_zero),
    "fla #1208: chunks take the logarithm of beta + 1e-6",
    "value_on_integers",
    op=_OP,
)
enter(
    "momentum_of_the_state_lost",
    before(by_tokens(), _momentum_lost),
    "#93: fla #285: the state of a half is not the state of the whole",
    "state_split",
    "decoding",
    op=_OP,
)
