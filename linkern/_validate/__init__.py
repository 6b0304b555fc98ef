"""Every argument check and every error sentence of the library.

A sentence names the argument in backticks, the rule, what was got and, where it is not
obvious, what to do.
"""

from linkern._validate.arrays import (
    features,
    gate_fits,
    home,
    leading,
    not_positive,
    positive,
    qkv,
    shapes,
    widened,
    within,
)
from linkern._validate.options import (
    chunk_size,
    dimension,
    flag,
    form,
    offsets,
    scale,
)
from linkern._validate.states import (
    combinable,
    initial_state,
    packed_state,
    state_parts_fit,
)

__all__ = [
    "chunk_size",
    "combinable",
    "dimension",
    "features",
    "flag",
    "form",
    "gate_fits",
    "home",
    "initial_state",
    "leading",
    "not_positive",
    "offsets",
    "packed_state",
    "positive",
    "qkv",
    "scale",
    "shapes",
    "state_parts_fit",
    "widened",
    "within",
]
