"""Defects of the preconditioned delta rules: their sums, their factor, two keys."""

import numpy as np

from linkern.testing.kernels.assembly import Array, Inputs
from linkern.testing.kernels.correct.preconditioned import by_tokens, squash
from linkern.testing.kernels.mutants.catalogue import before, enter

__all__: list[str] = []

_GDN, _KDA = "preconditioned_gated_delta_rule", "preconditioned_kda"


def _of_two(sums: Array, center: Array, log_range: Array) -> Array:
    """Take the exponential to base 2, of a natural logarithm."""
    return squash(sums, center, log_range * np.asarray(np.log(2), sums.dtype))


def _one_sided(sums: Array, center: Array, log_range: Array) -> Array:
    """Raise no channel above its key: a distance below zero counts as none."""
    return np.minimum(squash(sums, center, log_range), 1)


def _one_gate(call: Inputs) -> Inputs:
    """Let the sums decay as the memory does."""
    return {**call, "preconditioner_log_decay": call.get("log_decay")}


def _one_gate_by_default(call: Inputs) -> Inputs:
    """Let the sums decay as the memory does, where they have no gate."""
    gate = call.get("preconditioner_log_decay")
    return _one_gate(call) if gate is None else call


def _center_of_first_head(call: Inputs) -> Inputs:
    """Read the centers without the offset of the head."""
    center = call.get("center")
    if center is None:
        return call
    return {**call, "center": np.broadcast_to(center[:1], center.shape)}


def _sums_lost(call: Inputs) -> Inputs:
    """Take over the memory of an initial state, and begin the sums anew."""
    state = call.get("initial_state")
    if state is None:
        return call
    return {**call, "initial_state": (state[0], np.zeros_like(state[1]))}


enter(
    "erased_along_the_key_written",
    by_tokens(erase_written=True),
    "#43: fla d1fc1c54: another update rule in its place",
    op=_GDN,
)
enter(
    "sums_decayed_by_the_other_gate",
    before(by_tokens(), _one_gate),
    "#92: fla 505809bf: arguments in another order",
    op=_GDN,
)
enter(
    "sums_decayed_by_the_other_gate_by_default",
    before(by_tokens(), _one_gate_by_default),
    "#12: fla 23da0a15: what a gate of None leaves undefined",
    "option_neutrality",
    op=_GDN,
)
enter(
    "center_of_first_head",
    before(by_tokens(), _center_of_first_head),
    "#4: fla 40334f1c: strides that forget the heads",
    op=_GDN,
)
enter(
    "sums_of_the_state_lost",
    before(by_tokens(), _sums_lost),
    "#93: fla #285: the state of a half is not the state of the whole",
    "state_split",
    "decoding",
    op=_GDN,
)
enter(
    "sums_of_the_token_before",
    by_tokens(late=True),
    "#60: fla 85992884: a factor that one of two terms has",
    op=_KDA,
)
enter(
    "range_to_base_two",
    by_tokens(_of_two),
    "#114: sglang #30860: exp of a gate that was made for exp2",
    op=_KDA,
)
enter(
    "channels_raised_never",
    by_tokens(_one_sided),
    "#114: sglang #30860: clamped gates",
    op=_KDA,
)
