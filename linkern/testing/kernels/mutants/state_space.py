"""Defects of the selective scan: its steps, its rates, its skip and its state."""

import numpy as np

from linkern.testing.kernels.assembly import Inputs
from linkern.testing.kernels.correct import state_space
from linkern.testing.kernels.mutants.catalogue import before, enter

__all__: list[str] = []

_SCAN = state_space.selective_scan_by_tokens


def _step_of_first_channel(call: Inputs) -> Inputs:
    """Give all channels the step of the first."""
    dt = call["dt"]
    return {**call, "dt": np.broadcast_to(dt[..., :1], dt.shape)}


def _rates_of_first_head(call: Inputs) -> Inputs:
    """Read the rates without the offset of the head."""
    rate = call["log_decay_rate"]
    return {**call, "log_decay_rate": np.broadcast_to(rate[:1], rate.shape)}


def _rates_in_the_other_layout(call: Inputs) -> Inputs:
    """Take rates that are channels by states for states by channels."""
    rate = call["log_decay_rate"]
    turned = np.swapaxes(rate.reshape(*rate.shape[:-2], *rate.shape[:-3:-1]), -1, -2)
    return {**call, "log_decay_rate": np.ascontiguousarray(turned)}


def _skip_lost_in_decoding(call: Inputs) -> Inputs:
    """Leave the skip out where a single token is decoded, and nowhere else."""
    return {**call, "skip": None} if call["value"].shape[-2] == 1 else call


enter(
    "step_of_first_channel",
    before(_SCAN, _step_of_first_channel),
    "#52: fla 59f3f67e: rates that are not repeated",
    op="selective_scan",
)
enter(
    "rates_of_first_head",
    before(_SCAN, _rates_of_first_head),
    "#4: fla 40334f1c: strides that forget the heads",
    op="selective_scan",
)
enter(
    "rates_in_the_other_layout",
    before(_SCAN, _rates_in_the_other_layout),
    "#116: sparkinfer #610: prefill writes S, decoding reads its transpose",
    op="selective_scan",
)
enter(
    "skip_lost_in_decoding",
    before(_SCAN, _skip_lost_in_decoding),
    "#90: fla cde25dfd: what one form does, and another does not",
    "decoding",
    op="selective_scan",
)
