"""Faulty variants of the kernels of fla-core that run on several ranks."""

import functools
from unittest.mock import patch

from linkern.adapters import fla_ranks

MERGE = "fla.ops.cp.chunk_delta_h.chunk_cp_merge"


@functools.wraps(fla_ranks.gated_delta_rule)
def without_earlier_ranks(*inputs, **options):
    """Leave out the maps of all earlier ranks."""
    with patch(MERGE, lambda **_: None):
        return fla_ranks.gated_delta_rule(*inputs, **options)
