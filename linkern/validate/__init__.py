"""Every argument check and every error sentence of the library.

A sentence names the argument in backticks, the rule, what was got and, where it is not
obvious, what to do.
"""

from linkern.validate.arrays import (
    a_feature_map,
    features,
    gate_fits,
    home,
    leading,
    not_positive,
    positive,
    qkv,
    rows,
    shapes,
    wide_dtype,
    widened,
    within,
)
from linkern.validate.attention import (
    at_least,
    attended,
    block_size,
    bucket_count,
    generator,
    mask,
    not_negative,
    pattern,
    root_scale,
    same_length,
    similarities,
    summary,
    with_shared_keys,
)
from linkern.validate.keywords import keywords
from linkern.validate.options import (
    chunk_size,
    dimension,
    flag,
    form,
    offsets,
    positive_integer,
    scale,
)
from linkern.validate.states import (
    combinable,
    initial_state,
    one_memory,
    packed_state,
)
from linkern.validate.transforms import no_forward_mode, something_to_map_over

__all__ = [
    "a_feature_map",
    "at_least",
    "attended",
    "block_size",
    "bucket_count",
    "chunk_size",
    "combinable",
    "dimension",
    "features",
    "flag",
    "form",
    "gate_fits",
    "generator",
    "home",
    "initial_state",
    "keywords",
    "leading",
    "mask",
    "no_forward_mode",
    "not_negative",
    "not_positive",
    "offsets",
    "one_memory",
    "packed_state",
    "pattern",
    "positive",
    "positive_integer",
    "qkv",
    "root_scale",
    "rows",
    "same_length",
    "scale",
    "shapes",
    "similarities",
    "something_to_map_over",
    "summary",
    "wide_dtype",
    "widened",
    "with_shared_keys",
    "within",
]
