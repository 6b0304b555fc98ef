"""Kernels made of parts that can be replaced: one defect is one part exchanged.

`linear` is linear attention with a normalizer, `recurrence` the operators with decays
and erases, `slots` gated slot attention. They are written as their authors might have
written them, on NumPy arrays, and share no code with the reference.
"""

from linkern.testing.kernels.assembly.linear import (
    Backward,
    Parts,
    assemble,
    elu_plus_one,
    lower_triangle,
    slope_of_elu,
    stateful,
)
from linkern.testing.kernels.assembly.packed import (
    Span,
    mapped,
    one_state,
    packed,
    stacked,
)
from linkern.testing.kernels.assembly.parts import (
    CHUNK,
    Array,
    Change,
    Counts,
    Inputs,
    Kernel,
    State,
    all_tokens,
    rounded_to,
    unchanged,
    unit_rows,
    wide,
)
from linkern.testing.kernels.assembly.recurrence import (
    RecurrenceBackward,
    decays_between,
    forward_substitution,
    recurrence,
)
from linkern.testing.kernels.assembly.slots import slot_attention
from linkern.testing.kernels.assembly.terms import Terms

__all__ = [
    "CHUNK",
    "Array",
    "Backward",
    "Change",
    "Counts",
    "Inputs",
    "Kernel",
    "Parts",
    "RecurrenceBackward",
    "Span",
    "State",
    "Terms",
    "all_tokens",
    "assemble",
    "decays_between",
    "elu_plus_one",
    "forward_substitution",
    "lower_triangle",
    "mapped",
    "one_state",
    "packed",
    "recurrence",
    "rounded_to",
    "slope_of_elu",
    "slot_attention",
    "stacked",
    "stateful",
    "unchanged",
    "unit_rows",
    "wide",
]
